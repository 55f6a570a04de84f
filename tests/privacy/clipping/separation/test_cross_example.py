"""Losses on all rows and on few: what they must share, and what cannot be seen."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.separation.cross_example import NothingCompared, check_halves
from dpft.privacy.clipping.separation.reexecution import RandomState
from tests.privacy.clipping.separation.comparing import compare_losses

G = torch.Generator().manual_seed(0)
X, LABELS = torch.randn(6, 3, generator=G), torch.tensor([0, 1, 2, 3, 4, 5])
COUNTS = torch.tensor([1.0, 4.0, 2.0, 5.0, 3.0, 2.0])
ORDER = COUNTS.argsort()
CPU = torch.device("cpu")


def compared(losses_of):
    """Compares losses of few rows with those of all.

    Raises:
        RunError: They are others, or that cannot be seen.
    """
    torch.manual_seed(0)
    return compare_losses(nn.Linear(3, 6), losses_of)[1]


def nll(model, x=X, **options):
    return F.cross_entropy(model(x), LABELS, reduction="none", **options)


@pytest.mark.parametrize(
    "losses",
    [
        lambda m: nll(m) / COUNTS.sum(),
        lambda m: nll(m) / len(X),
        lambda m: nll(m) - 0.01 * nll(m).detach().mean(),
        lambda m: nll(m) * nll(m).detach().argsort().argsort(),
        lambda m: nll(m) * (1 + nll(m).detach() / nll(m).detach().max()),
        lambda m: nll(m) * (1 + (nll(m).detach() == nll(m).detach().max())),
        lambda m: nll(m) / nll(m).detach().topk(2).values[1],
        lambda m: nll(m) * (nll(m) >= nll(m).detach().median()),
        lambda m: nll(m) * (1 + nll(m).detach().min()),
        lambda m: nll(m, X - X.mean(0)),
        lambda m: nll(m, X + torch.randn(X.shape) * X.std()),
    ],
    ids=[
        *("tokens", "rows", "baseline", "ranks", "largest", "the largest alone"),
        *("second largest", "harder half", "smallest", "mixed inputs", "noise of the batch"),
    ],
)
def test_a_loss_that_reads_other_rows_is_seen(losses):
    with pytest.raises(RunError, match="depends on another example's loss or inputs"):
        compared(losses)


@pytest.mark.parametrize(
    "losses",
    [
        nll,
        lambda m: nll(m) * COUNTS,
        lambda m: nll(m, weight=torch.linspace(1, 2, 6)),
        lambda m: nll(m) * torch.linspace(1, 2, 6)[LABELS],
        lambda m: torch.stack([loss * 2 for loss in nll(m)]),
        lambda m: nll(m) + torch.rand(6),
        lambda m: nll(m).view(6, -1).sum(1),
        lambda m: F.cross_entropy(m(X[ORDER]), LABELS[ORDER], reduction="none"),
    ],
    ids=["own", "weights", "classes", "table", "stacked", "noise", "number", "sorted"],
)
def test_losses_of_ones_own_pass(losses):
    assert compared(losses) is not None


def test_a_function_that_keeps_labels_in_lists_passes():
    labels = LABELS.tolist()
    assert compared(lambda m: torch.stack([m(X)[i, k] for i, k in enumerate(labels)])) is not None


def test_a_function_that_keeps_its_rows_from_being_taken_is_refused():
    first = X.tolist()

    def losses(model):
        if X.tolist() != first:
            raise ValueError("all rows in their order")
        return model(X)[:, 0]

    with pytest.raises(NothingCompared, match="cannot be computed on some of the batch's rows"):
        compared(losses)


def test_submodules_called_alone_are_compared_on_halves():
    layer = nn.Linear(3, 1)
    model, state = nn.Sequential(layer), RandomState.now(CPU)
    check_halves(model, lambda: layer(X)[:, 0], state)
    with pytest.raises(RunError, match="depends on another example's loss or inputs"):
        check_halves(model, lambda: layer(X - X.mean(0))[:, 0], state)
