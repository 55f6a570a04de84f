"""Gradients of rows among others and without these: what must be the same, and what cannot be."""

import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.separation.cross_gradients import CrossExampleGradients
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


def compared(scale_of, x=X):
    """Returns whether gradients were compared, behind losses that are the same on any rows.

    Raises:
        RunError: They are not the same.
    """
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    losses_of = lambda model: Scaled.apply(model(x)[:, 0] ** 2, scale_of)  # noqa: E731
    check, found = compare_losses(model, losses_of)
    return CrossExampleGradients(check).compare(found, dict(model.named_parameters()))


def weighed(gradient):
    return int((gradient != 0).sum())


@pytest.mark.parametrize(
    "scale_of",
    [
        len,
        lambda gradient: 1.0 + (len(gradient) >= 9),
        lambda gradient: 1.0 + (weighed(gradient) >= 9),
        lambda gradient: 1.0 + 0.05 * (weighed(gradient) == ROWS),
        lambda gradient: gradient.norm(),
        lambda gradient: 1.0 + 0.05 * (len(gradient) == ROWS and gradient.unique().numel() == 1),
    ],
    ids=[
        "number",
        "nine rows",
        "nine that weigh",
        "5 % where all weigh",
        "norm of all",
        "where all weigh the same",
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
