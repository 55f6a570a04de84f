"""Squares, and the size of what they were added up from."""

import pytest
import torch
from torch import Tensor

from dpft.devices import multiplies_halves
from dpft.privacy.clipping import squares
from dpft.privacy.clipping.norms import squared_norms
from dpft.privacy.clipping.squares import (
    CUT_OFF,
    Squares,
    bfloat16_parts,
    formed_squares,
    ghost_squares,
    gram_squares,
    in_norm_dtype,
    lengths,
    product,
    product_sums,
    sums_of_squares,
    weighted_product,
)
from dpft.privacy.clipping.uses import GradientUse, OuterProduct, Use
from tests import pretended
from tests.pretended import on_pretended
from tests.privacy.clipping.small_uses import dense, outer


@pytest.mark.parametrize("steps", [5, 256, 257, 303])
def test_the_ghost_norm_is_exact_for_short_sequences_and_by_halves_for_long_ones(steps):
    use = outer(b=2, t=steps, rows=3, columns=4)
    expected = dense(use).square().sum((1, 2))
    assert torch.allclose(ghost_squares(use.left, use.right).values, expected, rtol=1e-10)


def test_a_square_from_gram_matrices_says_how_large_its_terms_were():
    # Two positions of opposite sign: 1 - 1 - 1 + 1 = 0, of terms that add up to 4.
    left = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
    squares = gram_squares(left, torch.ones(1, 2, 2), rows=1, columns=1)
    assert squares.values.tolist() == [0.0]
    assert squares.terms.tolist() == pytest.approx([4.0])


def test_what_may_have_underflowed_counts_as_a_term():
    # What float32 makes of products of vectors of 1e-23, beside inner products of 1e10.
    squares = gram_squares(torch.zeros(1, 2, 2), torch.full((1, 2, 2), 1e10), rows=3, columns=3)
    assert squares.values.tolist() == [0.0]
    assert float(squares.terms) > 0


def test_terms_of_a_sum_are_added_by_their_magnitudes():
    squares = product_sums(torch.tensor([[[3.0, -1.0]], [[-2.0, -2.0]]]))
    assert squares.values.tolist() == [2.0, -4.0] and squares.terms.tolist() == [4.0, 4.0]
    both = squares + squares
    assert both.values.tolist() == [4.0, -8.0] and both.terms.tolist() == [8.0, 8.0]


def test_a_gradient_that_rounding_took_for_zero_has_terms():
    squares = formed_squares(torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert 0 < squares.terms[0] < 1e-20 and squares.terms[1] > 1e-4


@pytest.mark.parametrize("shape", [(2, 6), (2, 2, 3), (2, 1, 2, 3)])
def test_sums_of_squares_are_those_of_each_example(shape):
    values = torch.arange(1.0, 13.0).view(shape)
    # 1 + 4 + ... + 36 = 91, and 49 + ... + 144 = 559.
    assert sums_of_squares(values).tolist() == pytest.approx([91.0, 559.0])


def test_a_length_is_never_below_the_norm_where_squares_underflow():
    rows = torch.full((1, 1, 4), 1e-25)
    assert rows.norm() < 2e-25
    assert float(lengths(rows)) >= 2e-25
    assert lengths(torch.tensor([[[3.0, 4.0]]])).tolist() == [[5.0]]


def test_half_precision_is_summed_in_float32_and_float64_stays():
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        rows = torch.ones(1, 2, 2, dtype=dtype)
        assert in_norm_dtype(rows).dtype == expected
        assert sums_of_squares(rows).dtype == lengths(rows).dtype == expected


def test_terms_of_an_inner_product_are_no_smaller_for_a_negative_factor():
    terms = [
        Squares(torch.ones(1), torch.full((1,), 4.0)).times(
            torch.tensor([sign * 3.0]), squared=False
        )
        for sign in (1, -1)
    ]
    assert float(terms[1].terms) == float(terms[0].terms) == pytest.approx(12.0)
    assert float(terms[1].values) == -float(terms[0].values)


THERE = f"{pretended.NAME}:0"
Found = tuple[Tensor, Tensor, Tensor, Tensor]


def recorded(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output gradients, inputs, factors, and what is added to."""
    torch.manual_seed(0)
    left, right = (torch.randn(3, 40, size).to(dtype) for size in (70, 90))
    return left, right, torch.rand(3), torch.randn(70, 90)


def computed(dtype: torch.dtype, where: str) -> Found:
    """A product, a weighted sum, the same added to something, and squares of norms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squares, "CHAIN", 16)  # 40 positions are three chains
        device = torch.device(where)
        assert multiplies_halves(device) == (device.type != "cpu")
        left, right, factors, total = (each.to(device) for each in recorded(dtype))
        found = (
            product(left.transpose(1, 2), right),
            weighted_product(left, right, factors),
            weighted_product(left, right, factors, total),
            OuterProduct(left, right).squares().values,
        )
        return tuple(each.cpu() for each in found)  # type: ignore[return-value]


@pytest.mark.parametrize("where", ["cpu", pretended.NAME])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_float32s_of_what_was_recorded(dtype: torch.dtype, where: str) -> None:
    if where == "cpu":
        formed, added, onto, squares = computed(dtype, "cpu")
    else:
        formed, added, onto, squares = on_pretended(computed, dtype, THERE)
    left, right, factors, total = (each.double() for each in recorded(dtype))
    each = left.transpose(1, 2) @ right
    expected = (each * factors.view(-1, 1, 1)).sum(0)
    for found, exact in ((formed, each), (added, expected), (onto, expected + total)):
        assert found.dtype == torch.float32
        assert (found - exact).abs().max() <= 1e-6 * exact.abs().max()
    exact = each.square().sum((1, 2))
    assert ((squares - exact) / exact).abs().max() <= 1e-3


def test_squares_of_halves_are_raised_by_what_matrix_units_may_cut_off() -> None:
    """So a chain of additions that loses a unit in the last place each time is no norm too low."""
    _, _, _, squares = on_pretended(computed, torch.bfloat16, THERE)
    left, right, _, _ = (each.double() for each in recorded(torch.bfloat16))
    exact = (left.transpose(1, 2) @ right).square().sum((1, 2))
    assert (squares > exact * (1 + CUT_OFF / 2)).all()
    assert (computed(torch.bfloat16, "cpu")[3] < exact * (1 + 1e-6)).all()


def test_three_numbers_of_bfloat16_hold_one_of_float32() -> None:
    values = torch.randn(1000) * 10.0 ** torch.arange(-20, 20).repeat(25)
    parts = bfloat16_parts(values.clone())
    assert torch.equal(sum(part.double() for part in parts), values.double())


def cut_off(left: Tensor, right: Tensor, total: Tensor | None) -> Tensor:
    """Adds products of half precision eight at a time, and cuts off what float32 would round."""
    added = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    for factors in zip(left.double().split(8, -1), right.double().split(8, -2), strict=True):
        exact = added + torch.matmul(*factors)
        short = exact.float()
        beyond = short.double().abs() > exact.abs()
        added = torch.where(beyond, short.nextafter(torch.zeros_like(short)), short).double()
    return added.float() if total is None else total.add_(added)


@pytest.mark.parametrize("others", ["none", "a formed gradient"])
@pytest.mark.parametrize("steps", [40, 4000])
def test_no_norm_is_too_low_where_a_device_cuts_off(
    monkeypatch: pytest.MonkeyPatch, steps: int, others: str
) -> None:
    torch.manual_seed(0)
    left, right = (torch.rand(2, steps, size).bfloat16() for size in (12, 9))
    uses: list[Use] = [OuterProduct(left, right)]
    if others == "a formed gradient":
        uses.append(GradientUse(torch.rand(2, 12, 9)))
    exact = torch.stack([use.double(torch.arange(2)).instantiate() for use in uses]).sum(0)
    monkeypatch.setattr(squares, "multiplies_halves", lambda device: True)
    monkeypatch.setattr(squares, "_added_halves", cut_off)
    found = squared_norms(uses).values.double().sqrt()
    assert (found >= torch.linalg.vector_norm(exact, dim=(1, 2)) * (1 - 1e-6)).all()
