"""Squares, and the size of what they were added up from."""

import pytest
import torch

from dpft.privacy.clipping.products import in_norm_dtype
from dpft.privacy.clipping.squares import (
    Squares,
    formed_squares,
    ghost_squares,
    gram_squares,
    lengths,
    product_sums,
    sums_of_squares,
)
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
