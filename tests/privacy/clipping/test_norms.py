"""A parameter's norms: of all its uses together, and right where float32 alone would not be."""

import pytest
import torch

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.norms import LONGEST, formed_gradient, squared_norms
from dpft.privacy.clipping.uses import OuterProduct, RowsUse, merge_uses
from tests.privacy.clipping.small_uses import dense, gradient, outer, rows_use

pytestmark = pytest.mark.usefixtures("self_check_once")


@pytest.mark.parametrize(
    "uses",
    [
        [outer(), rows_use()],
        [outer(), outer(seed=5)],
        [rows_use(), rows_use(seed=6)],
        [outer(), gradient()],
        [rows_use(), gradient(), outer(), rows_use(seed=7)],
    ],
    ids=["tied", "two-outer", "two-rows", "outer-and-gradient", "all"],
)
def test_uses_of_one_parameter_add_up_before_the_norm(uses):
    expected = sum(dense(use) for use in uses).square().sum((1, 2))
    assert torch.allclose(squared_norms(merge_uses(uses)).values, expected)


def test_tied_uses_that_cancel_are_formed_and_have_the_norm_of_what_is_formed():
    """Head and embedding gradients that are each other's negative: cross term -2 |g|^2."""
    ids = torch.tensor([[2]])
    values = torch.tensor([[[3.0, 4.0]]])
    left = torch.nn.functional.one_hot(ids, 4).float()
    tied = [OuterProduct(-left, values), RowsUse(ids, values, 4)]
    found = squared_norms(tied)
    assert found.values.tolist() == [0.0] and found.formed.tolist() == [True]
    parts = list(formed_gradient(tied, torch.tensor(0)))
    assert parts[0][0] == slice(0, 4) and not bool(parts[0][1].any())


@pytest.mark.parametrize(
    ("dtype", "tolerance", "cancelled_to"),
    [(torch.float32, 1e-5, r) for r in (1e-1, 3e-2, 1e-2, 3e-3)]
    + [(torch.float64, 1e-10, r) for r in (1e-2, 1e-4, 1e-6)],
)
def test_norms_hold_where_positions_nearly_cancel(dtype, tolerance, cancelled_to):
    """Almost opposite positions: a norm lost to rounding would let the example in unclipped."""
    g = torch.Generator().manual_seed(0)
    left = torch.randn(16, 1, 64, generator=g, dtype=dtype)
    right = torch.randn(16, 1, 64, generator=g, dtype=dtype)
    nudge = cancelled_to * torch.randn(16, 1, 64, generator=g, dtype=dtype)
    use = OuterProduct(torch.cat([left, -left], 1), torch.cat([right, right + nudge], 1))
    # The definition, without cancellation of squares: left (right - right - nudge)^T.
    difference = use.right[:, 0].double() - use.right[:, 1].double()
    exact = left[:, 0].double().norm(dim=1) * difference.norm(dim=1)
    got = squared_norms([use]).values.sqrt().double()
    assert ((got - exact).abs() <= tolerance * exact).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("steps", [2, 64])
def test_an_example_whose_gradient_cancels_cannot_exceed_the_sensitivity(dtype, tolerance, steps):
    g = torch.Generator().manual_seed(1)
    layer = torch.nn.Linear(128, 128, bias=False).to(dtype)
    half = steps // 2
    rows, others, nudge = torch.randn(3, half, 128, generator=g, dtype=dtype)
    for exponent in range(10):
        inputs = torch.cat([rows, rows + 10.0**-exponent * nudge])[None]
        weights = torch.cat([1e2 * others, -1e2 * others])[None]
        layer.zero_grad()
        with PerExampleClipper(layer, 0.1) as clipper:
            clipper.accumulate(lambda: (layer(inputs) * weights).sum((1, 2)))  # noqa: B023
        assert float(layer.weight.grad.norm()) <= 0.1 * (1 + tolerance), exponent


def test_a_norm_whose_squares_underflow_is_taken_again_in_float64():
    use = OuterProduct(torch.full((1, 2, 3), 1e-23), torch.full((1, 2, 4), 1e10))
    (square,) = squared_norms([use]).values
    assert square.dtype == torch.float64
    # Twelve entries of 2 * 1e-13.
    assert square.item() == pytest.approx(12 * 4e-26, rel=1e-5)


def test_what_is_too_long_for_float32_products_is_formed_and_what_is_infinite_is_not():
    left = torch.tensor([2 * LONGEST, float("inf")]).view(2, 1, 1)
    found = squared_norms([OuterProduct(left, torch.full((2, 1, 1), 1e-20))])
    assert found.formed.tolist() == [True, False]
    assert found.values.tolist() == pytest.approx([(2 * LONGEST * 1e-20) ** 2, float("inf")])
