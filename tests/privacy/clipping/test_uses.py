import pytest
import torch

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.norms import squared_norms
from dpft.privacy.clipping.squares import ghost_squares
from dpft.privacy.clipping.units import Units
from dpft.privacy.clipping.uses import GradientUse, OuterUse, RowsUse, merge_uses


def outer(b=3, t=5, rows=4, columns=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = {"generator": g, "dtype": torch.float64}
    return OuterUse(torch.randn(b, t, rows, **shape), torch.randn(b, t, columns, **shape))


def rows_use(b=3, t=5, rows=4, columns=6, seed=1):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, rows, (b, t), generator=g)
    return RowsUse(ids, torch.randn(b, t, columns, generator=g, dtype=torch.float64), rows)


def gradient(b=3, rows=4, columns=6, seed=2):
    g = torch.Generator().manual_seed(seed)
    return GradientUse(torch.randn(b, rows, columns, generator=g, dtype=torch.float64))


def dense(use):
    """Per-example gradients by the definition of each kind, one position at a time."""
    if isinstance(use, GradientUse):
        return use.values
    if isinstance(use, OuterUse):
        pairs = zip(use.left, use.right, strict=True)
        return torch.stack([sum(torch.outer(x, y) for x, y in zip(*p, strict=True)) for p in pairs])
    total = torch.zeros(len(use.ids), use.rows, use.values.shape[2], dtype=torch.float64)
    for example, (ids, values) in enumerate(zip(use.ids, use.values, strict=True)):
        for row, value in zip(ids, values, strict=True):
            total[example, row] += value
    return total


# Short sequences take the ghost norm, long ones the instantiated gradient.
USES = [outer(t=1), outer(t=2), outer(t=50), rows_use(), rows_use(t=40), gradient()]


@pytest.mark.parametrize("use", USES)
def test_norm_instance_and_weighted_sum_follow_the_definition(use):
    expected = dense(use)
    assert torch.allclose(use.instantiate(), expected)
    assert torch.allclose(use.squares().values, expected.square().sum((1, 2)))
    factors, total = (
        torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64),
        torch.ones_like(expected[0]),
    )
    use.add_weighted_sum(factors, total)
    assert torch.allclose(total, 1 + torch.einsum("b,b...->...", factors, expected))


@pytest.mark.parametrize("steps", [5, 256, 257, 303])
def test_the_ghost_norm_is_exact_for_short_sequences_and_by_halves_for_long_ones(steps):
    use = outer(b=2, t=steps, rows=3, columns=4)
    expected = dense(use).square().sum((1, 2))
    assert torch.allclose(ghost_squares(use.left, use.right).values, expected, rtol=1e-10)


@pytest.mark.parametrize("use", USES)
def test_examples_that_are_not_kept_become_zero_even_if_they_were_not_finite(use):
    spoilt = type(use)(*vars(use).values())
    for value in vars(spoilt).values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value[1] = float("nan")
    kept = spoilt.keep(torch.tensor([True, False, True]))
    norms = kept.squares().values
    assert norms[1] == 0 and norms.isfinite().all()


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
    assert torch.allclose(squared_norms(merge_uses(uses)), expected)


def test_tied_uses_that_cancel_have_a_norm_no_smaller_than_a_share_of_their_reach():
    """Head and embedding gradients that are each other's negative: cross term -2 |g|^2."""
    ids = torch.tensor([[2]])
    values = torch.tensor([[[3.0, 4.0]]])
    left = torch.nn.functional.one_hot(ids, 4).float()
    tied = [OuterUse(-left, values), RowsUse(ids, values, 4)]
    assert squared_norms(tied).sqrt().tolist() == pytest.approx([1e-3 * 10])


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
    use = OuterUse(torch.cat([left, -left], 1), torch.cat([right, right + nudge], 1))
    # The definition, without cancellation of squares: left (right - right - nudge)^T.
    difference = use.right[:, 0].double() - use.right[:, 1].double()
    exact = left[:, 0].double().norm(dim=1) * difference.norm(dim=1)
    got = squared_norms([use]).sqrt().double()
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


@pytest.mark.parametrize("use", [outer(), rows_use(), gradient()])
def test_a_units_gradient_is_the_sum_of_its_rows(use):
    units = Units.of(torch.tensor([7, 3, 7]))
    expected = torch.stack([dense(use)[1], dense(use)[0] + dense(use)[2]])
    assert torch.allclose(use.by_unit(units).instantiate(), expected)


def test_half_precision_uses_are_summed_in_float32():
    use = OuterUse(torch.full((1, 4096, 1), 0.1).bfloat16(), torch.ones(1, 4096, 1).bfloat16())
    tenth = float(torch.tensor(0.1).bfloat16())
    assert use.squares().values.dtype == torch.float32
    assert float(use.squares().values) == pytest.approx((4096 * tenth) ** 2, rel=1e-5)
