"""That examples do not mix, looked at where gradients are taken one by one."""

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.exactness import CheckSchedule

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_detached_mean_in_the_loss_is_refused_with_dropout_too(rate):
    torch.manual_seed(0)  # few rows of one start in sixty have the mean of all of them
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(rate))

    def losses():
        own = model(X).square().sum(1)
        return own - 0.1 * own.detach().mean()

    with (
        PerExampleClipper(model, 0.5, engine="loop") as clipper,
        pytest.raises(RunError, match="depends on another example's loss or inputs"),
    ):
        clipper.accumulate(losses)
    assert model[0].weight.grad is None


def test_the_masks_are_those_that_the_model_would_have_drawn():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
    torch.manual_seed(0)
    expected = model(X).square().sum(1)
    seen = []

    def losses():
        seen.append(model(X).square().sum(1))
        return seen[-1]

    torch.manual_seed(0)
    with PerExampleClipper(model, 0.5, engine="loop") as clipper:
        clipper.accumulate(losses)
    assert torch.equal(seen[-1], expected)


@pytest.mark.parametrize(
    ("reduced", "words"),
    [
        (lambda each: each.mean(), "do not reduce over the batch"),
        (lambda each: float(each.mean().detach()), r"tensor of shape \(b,\)"),
        (lambda each: each[:, None], r"got \(6, 1\)"),
    ],
)
def test_what_is_no_list_of_losses_is_refused_in_words(reduced, words):
    model = nn.Linear(3, 1)
    with (
        PerExampleClipper(model, 0.5, engine="loop") as clipper,
        pytest.raises(InputError, match=words),
    ):
        clipper.accumulate(lambda: reduced(model(X)[:, 0]))


def test_a_submodule_called_alone_is_looked_at_once():
    model, calls = nn.Sequential(nn.Linear(3, 1)), []
    model[0].register_forward_pre_hook(lambda *_: calls.append(1))
    with PerExampleClipper(model, 0.5, engine="loop") as clipper:
        clipper.accumulate(lambda: model[0](X)[:, 0])
        calls.clear()
        clipper.accumulate(lambda: model[0](X)[:, 0])
        assert len(calls) == 1
    with (
        PerExampleClipper(model, 0.5, engine="loop") as clipper,
        pytest.raises(RunError, match="depends on another example's loss or inputs"),
    ):
        clipper.accumulate(lambda: model[0](X - X.mean(0))[:, 0])


def test_the_rule_is_public_and_counts_batches_of_a_kind():
    kinds, due = CheckSchedule(), []
    for number in range(1, 70):
        if kinds.is_due("a"):
            due.append(number)
            kinds.note_checked(["a"])
            assert not kinds.is_due("a")
        kinds.count(["a"])
    assert due == [1, 16, 32, 64] and kinds.is_due("b") and kinds.any_used


def test_a_kind_whose_proof_failed_stays_due():
    kinds = CheckSchedule()
    assert kinds.is_due("a") and kinds.is_due("a") and not kinds.any_used
