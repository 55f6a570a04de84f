"""Snapshots of a model's state, and runs in which nothing is drawn."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.privacy.clipping.recorder import WholeBatchAttention
from dpft.privacy.clipping.separation.reexecution import (
    DeterministicMode,
    RandomState,
    evaluating,
    knows_no_order,
    one_order_of_addition,
    random_state_restored_on_failure,
    state_preserved,
)

CPU = torch.device("cpu")


def test_what_is_drawn_after_restoring_was_drawn_after_the_state_was_taken():
    state = RandomState.now(CPU)
    expected = torch.rand(4)
    torch.rand(3)
    state.restore()
    assert torch.equal(torch.rand(4), expected)


def test_a_failed_attempt_gives_its_numbers_back_and_a_successful_one_keeps_them():
    state = RandomState.now(CPU)
    first, second = torch.rand(4), torch.rand(4)
    state.restore()
    with pytest.raises(ZeroDivisionError), random_state_restored_on_failure(CPU):
        torch.rand(4)
        raise ZeroDivisionError
    with random_state_restored_on_failure(CPU):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.rand(4), second)


def test_state_is_put_back_after_an_error_too():
    model, before = nn.BatchNorm1d(3), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), state_preserved(model):
        model(torch.randn(4, 3))
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.running_mean, torch.zeros(3))


def test_evaluation_mode_ends_with_each_modules_own_mode():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_recurrent_layers_drop_nothing_in_evaluation_and_can_still_be_run_back_by_cudnn():
    model = nn.Sequential(nn.LSTM(3, 3, num_layers=2, dropout=0.5), nn.GRU(3, 3).eval())
    with evaluating(model):
        assert [layer.training for layer in model] == [True, True]
        assert [layer.dropout for layer in model] == [0.0, 0.0]
    assert [layer.training for layer in model] == [True, False]
    assert [layer.dropout for layer in model] == [0.5, 0.0]


X = torch.randn(4, 2, 3, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.5),
        nn.AlphaDropout(0.5),
        lambda x: F.dropout(x, p=0.9),
        lambda x: F.dropout2d(x, 0.9, True),
        lambda x: torch.dropout(x, 0.9, True),
    ],
)
def test_dropout_passes_everything_whoever_asks_for_it(drop):
    with DeterministicMode():
        assert torch.equal(drop(X), X)
    assert not torch.equal(drop(X), X)


def test_attention_drops_nothing():
    expected = F.scaled_dot_product_attention(X, X, X)
    with DeterministicMode():
        by_name = F.scaled_dot_product_attention(X, X, X, dropout_p=0.9)
        by_place = F.scaled_dot_product_attention(X, X, X, None, 0.9)
    assert torch.allclose(by_name, expected) and torch.allclose(by_place, expected)


def test_attention_on_the_whole_batch_of_a_map_drops_nothing_either():
    def attend(token, x):
        with WholeBatchAttention(token):
            return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.9)[0]

    with DeterministicMode():
        got = torch.vmap(attend, randomness="different")(torch.zeros(4), X)
    assert torch.allclose(got, F.scaled_dot_product_attention(X, X, X), atol=1e-6)


def test_what_is_drawn_is_the_same_for_every_row_and_moves_no_generator():
    state = torch.get_rng_state()
    with DeterministicMode():
        drawn = [
            torch.rand(3),
            torch.randn_like(X),
            X.clone().uniform_(),
            torch.bernoulli(X.sigmoid()),
        ]
        order = torch.randperm(4)
    assert all(len(each.unique()) == 1 for each in drawn) and order.tolist() == [3, 2, 1, 0]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_callers_own_draws_are_left_where_only_dropout_is_held():
    with DeterministicMode(noise=False):
        assert len(torch.rand(9).unique()) > 1
        assert torch.equal(F.dropout(X, 0.5), X)
    with DeterministicMode():
        seeded = torch.rand(9, generator=torch.Generator().manual_seed(1))
    assert len(seeded.unique()) > 1


@pytest.mark.parametrize("kind, asked", [("cuda", True), ("cpu", False)])
def test_an_accelerators_kernels_add_in_one_order_for_a_while(kind, asked, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with pytest.raises(ZeroDivisionError), one_order_of_addition(torch.device(kind)):
        assert torch.are_deterministic_algorithms_enabled() is asked
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_a_kernel_that_knows_no_order_is_told_from_other_errors():
    said = "cumsum_cuda_kernel does not have a deterministic implementation, but you set"
    assert knows_no_order(RuntimeError(said))
    assert not knows_no_order(RuntimeError("CUDA out of memory"))
    assert not knows_no_order(ValueError(said))
