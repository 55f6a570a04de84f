"""What extra runs of a model leave as it was: random numbers, buffers, modes."""

import pytest
import torch
from torch import nn

from dpft.privacy.clipping.separation.kept_state import (
    RandomState,
    evaluating,
    random_state_kept_on_failure,
    state_kept,
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
    with pytest.raises(ZeroDivisionError), random_state_kept_on_failure(CPU):
        torch.rand(4)
        raise ZeroDivisionError
    with random_state_kept_on_failure(CPU):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.rand(4), second)


def test_state_is_put_back_after_an_error_too():
    model, before = nn.BatchNorm1d(3), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), state_kept(model):
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
