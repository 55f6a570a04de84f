"""Gradients of rows among others and without these: what must be the same, and what cannot be."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.separation.cross_gradients import CrossExampleGradients
from dpft.privacy.clipping.separation.fingerprints import fingerprints_of
from tests.privacy.clipping.separation.comparing import compare_losses

ROWS = 12
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))


class Scaled(torch.autograd.Function):
    """Passes what it is given, and gradients times ``scale_of`` them."""

    @staticmethod
    def forward(ctx, values, scale_of):
        ctx.scale_of = scale_of
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale_of(gradient), None


class Recorded(nn.Linear):
    """A layer that keeps what enters and what leaves it, as an engine's layers do."""

    def forward(self, x):
        self.entered, self.left = x, super().forward(x)
        return self.left

    def gradients(self, losses, factors, *, units, precisely):
        (left,) = torch.autograd.grad(losses.sum(), self.left)
        weighted = (factors[:, None] * left)[factors != 0]
        entered = self.entered[factors != 0]
        return [fingerprints_of({"weight": weighted.T @ entered, "bias": weighted.sum(0)})]


def compared(scale_of, x=X):
    """Returns whether gradients were compared, behind losses that are the same on any rows.

    Raises:
        RunError: They are not the same.
    """
    torch.manual_seed(0)
    model = Recorded(3, 1)
    losses_of = lambda model: Scaled.apply(model(x)[:, 0] ** 2, scale_of)  # noqa: E731
    check, found = compare_losses(model, losses_of)
    alone = CrossExampleGradients(check).compare(found, dict(model.named_parameters()))
    return alone.compare(model.gradients, lambda: nullcontext(lambda arguments: False))


def weighed(gradient):
    return int((gradient != 0).sum())


def canceling(gradient):
    """Of rows that all weigh, adds to gradients what adds up to nothing."""
    if weighed(gradient) < 9:
        return 1.0
    # Each row's gradient is this number times 2 z [x, 1]; z is the first model's.
    torch.manual_seed(0)
    with torch.no_grad():
        z = nn.Linear(3, 1)(X)
    rows = (2 * z * torch.cat([X, torch.ones(ROWS, 1)], 1)).double()
    basis = torch.linalg.qr(rows).Q
    one = torch.eye(ROWS, dtype=torch.float64)[0]
    return 1.0 + (one - basis @ (basis.T @ one)).float()


@pytest.mark.parametrize(
    "scale_of",
    [
        len,
        lambda gradient: 1.0 + (len(gradient) >= 9),
        lambda gradient: 1.0 + (weighed(gradient) >= 9),
        lambda gradient: 1.0 + 0.05 * (weighed(gradient) == ROWS),
        lambda gradient: gradient.norm(),
        lambda gradient: 1.0 + 0.05 * (len(gradient) == ROWS and gradient.unique().numel() == 1),
        canceling,
    ],
    ids=[
        "number",
        "nine rows",
        "nine that weigh",
        "5 % where all weigh",
        "norm of all",
        "where all weigh the same",
        "what cancels in the sum",
    ],
)
def test_a_backward_pass_that_reads_other_rows_is_seen(scale_of):
    with pytest.raises(RunError, match="gradient of one example's loss depends on the other"):
        compared(scale_of)


@pytest.mark.parametrize("rows", [2, 3, 5, ROWS])
def test_what_is_done_to_each_row_alone_passes(rows):
    assert compared(lambda gradient: 3.0, X[:rows])


def test_rows_that_are_not_finite_do_not_keep_others_from_being_compared():
    x = X.clone()
    x[4] = float("nan")
    assert compared(lambda gradient: 1.0, x)
    for least in (4, ROWS - 1):  # all rows but the one are compared, and not other parts alone
        with pytest.raises(RunError, match="gradient of one example's loss"):
            compared(lambda gradient, least=least: 1.0 + 0.5 * (weighed(gradient) >= least), x)


def test_one_finite_row_beside_such_as_are_not_is_not_called_compared():
    x = torch.full_like(X, float("nan"))
    x[4] = X[4]
    assert not compared(lambda gradient: 1.0, x)
