"""Counts of blocks: each unit's probability of joining, exactly, from the thresholds themselves."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpft.privacy.accounting.mechanism import RATE_MARGIN
from dpft.privacy.binomial import LEAST_BLOCK, BinomialBlocks, block_size

RATES = (1e-9, 1e-7, 8192 / 5_240_387_307, 1024 / 42061, 1 / 16, 0.07, 0.25, 0.999, 1.0)


@pytest.mark.parametrize("rate", RATES)
def test_a_unit_joins_with_the_rate_far_within_the_accountants_margin(rate: float) -> None:
    blocks = BinomialBlocks(rate)
    # A mean is the sum of the chances to be above 0, 1, 2, ….
    mean = sum((1 - Fraction(one, 2**128) for one in blocks.thresholds), Fraction())
    error = abs(mean / blocks.size / Fraction(rate) - 1)
    assert error < Fraction(1, 2**120)
    assert error < Fraction(RATE_MARGIN) / 10**20


@pytest.mark.parametrize("rate", RATES)
def test_a_block_holds_about_one_drawn_unit(rate: float) -> None:
    size = block_size(rate)
    assert size == 1 or (size >= LEAST_BLOCK and size & (size - 1) == 0)
    assert size * rate <= 1
    assert size * rate > 0.5 or rate > 1 / LEAST_BLOCK


@pytest.mark.parametrize("rate", [1e-7, 1 / 16, 0.25])
def test_thresholds_are_the_binomial_distribution_function(rate: float) -> None:
    blocks = BinomialBlocks(rate)
    found = [one / 2**128 for one in blocks.thresholds[:8]]
    expected = stats.binom.cdf(range(len(found)), blocks.size, rate)
    assert np.allclose(found, expected, rtol=1e-9)


def test_a_number_on_a_threshold_is_above_it_in_both_halves_of_its_bits() -> None:
    blocks = BinomialBlocks(1 / 16)
    for count, threshold in enumerate(blocks.thresholds[:3]):
        words = [divmod(threshold + shift, 2**64) for shift in (-1, 0, 2**64)]
        counts = blocks.counts(np.array(words, dtype=np.uint64))
        assert counts.tolist() == [count, count + 1, count + 1]


def test_a_rate_of_one_always_counts_its_unit() -> None:
    words = np.array([(0, 0), (2**64 - 1, 2**64 - 1)], dtype=np.uint64)
    assert BinomialBlocks(1.0).counts(words).tolist() == [1, 1]
