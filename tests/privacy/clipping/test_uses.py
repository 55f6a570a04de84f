"""Each kind of use gives the norms and sums of the gradient that it stands for."""

import copy

import pytest
import torch

from dpft.privacy.clipping.trainable import Units
from dpft.privacy.clipping.uses import (
    ROWS_TOGETHER,
    GradientUse,
    OuterProduct,
    RowsUse,
    merge_uses,
    sum_of_rows,
)
from tests.privacy.clipping.small_uses import dense, gradient, outer, rows_use

EPS = torch.finfo(torch.float32).eps
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


@pytest.mark.parametrize("use", USES)
def test_examples_that_are_not_kept_become_zero_even_if_they_were_not_finite(use):
    spoilt = copy.deepcopy(use)
    for value in vars(spoilt).values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value[1] = float("nan")
    kept = spoilt.keep(torch.tensor([True, False, True]))
    norms = kept.squares().values
    assert norms[1] == 0 and norms.isfinite().all()


@pytest.mark.parametrize("use", [outer(), rows_use(), gradient()])
def test_a_units_gradient_is_the_sum_of_its_rows(use):
    units = Units.of(torch.tensor([7, 3, 7]))
    expected = torch.stack([dense(use)[1], dense(use)[0] + dense(use)[2]])
    assert torch.allclose(use.by_unit(units).instantiate(), expected)


def test_half_precision_uses_are_summed_in_float32():
    use = OuterProduct(torch.full((1, 4096, 1), 0.1).bfloat16(), torch.ones(1, 4096, 1).bfloat16())
    tenth = float(torch.tensor(0.1).bfloat16())
    assert use.squares().values.dtype == torch.float32
    assert float(use.squares().values) == pytest.approx((4096 * tenth) ** 2, rel=1e-5)


@pytest.mark.parametrize("use", USES)
def test_no_gradient_is_longer_than_its_norm_bound(use):
    norms = dense(use).flatten(1).norm(dim=1)
    assert bool((norms <= use.norm_bound() * (1 + 1e-12)).all())


def test_the_norm_bound_is_reached_where_no_two_terms_cancel():
    one = outer(t=1)
    twice = OuterProduct(torch.cat([one.left, one.left], 1), torch.cat([one.right, one.right], 1))
    ids = torch.zeros(3, 2, dtype=torch.long)
    same_row = RowsUse(ids, twice.right, 4)
    for use in (twice, same_row, gradient()):
        assert torch.allclose(use.norm_bound(), dense(use).flatten(1).norm(dim=1))


def test_uses_of_one_kind_are_joined_and_kinds_stay_apart():
    merged = merge_uses([rows_use(), outer(), gradient(), rows_use(seed=6), gradient(seed=7)])
    assert [type(use) for use in merged] == [OuterProduct, RowsUse, GradientUse]
    assert torch.allclose(dense(merged[1]), dense(rows_use()) + dense(rows_use(seed=6)))
    assert torch.allclose(dense(merged[2]), dense(gradient()) + dense(gradient(seed=7)))


@pytest.mark.parametrize("use", [outer(t=1), outer(t=50), rows_use(), rows_use(t=40)])
def test_an_extent_is_the_sum_of_the_lengths_that_a_product_adds_up(use):
    factors = [getattr(use, name) for name in ("left", "right", "values") if hasattr(use, name)]
    sums = [each.double().norm(dim=2).sum(1) for each in factors]
    assert torch.allclose(use.extent().double(), torch.stack(sums).amax(0))


def test_a_small_weights_sum_is_added_up_in_float64_and_rounded_once():
    """After 2^24 float32 cannot count by ones: one after the other they would add up to 2^24."""
    left = torch.ones(3, 40, 1)
    left[0, 0] = 2.0**24
    use, total = OuterProduct(left, torch.ones(3, 40, 1)), torch.zeros(1, 1)
    use.add_weighted_sum(torch.ones(3), total)
    assert float(total) == 2.0**24 + 120


# Units in ascending order: 3 has row 1 alone; 7 has rows 0 and 2.
UNITS = Units.of(torch.tensor([7, 3, 7]))
ROWS = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]])


def test_rows_are_numbered_by_unit_and_within_it():
    assert UNITS.index.tolist() == [1, 0, 1] and UNITS.position.tolist() == [0, 0, 1]
    assert (UNITS.count, UNITS.longest) == (2, 2)


def test_a_units_rows_stand_end_to_end_and_zeros_fill_up():
    assert UNITS.concatenate(ROWS)[..., 0].tolist() == [[3, 4, 0, 0], [1, 2, 5, 6]]


def test_a_units_rows_add_up():
    assert UNITS.sum(ROWS)[..., 0].tolist() == [[3, 4], [6, 8]]


@pytest.mark.parametrize("count", range(10))
def test_formed_gradients_are_rounded_four_times_before_they_are_added_in_float64(count):
    """One large term, and others that a sum one after the other would lose beside it."""
    g = torch.Generator().manual_seed(count)
    values = torch.rand(count, 300, generator=g) * EPS
    values[:1] = 1
    factors = torch.rand(count, generator=g) + 0.5
    exact = factors.double() @ values.double()
    got = sum_of_rows(factors, values)
    bound = (ROWS_TOGETHER * factors.double() @ values.double().abs() + exact.abs()) * 1.01
    assert ((got - exact).abs() <= bound * EPS / 2).all()


def test_many_formed_gradients_lose_nothing_beside_a_large_one():
    values = torch.full((4001, 2), 2.0**-25)
    values[0] = 1
    exact = 1 + 4000 * 2.0**-25
    assert (sum_of_rows(torch.ones(4001), values) - exact).abs().max() <= 3 * 2.0**-25 + 2.0**-24
