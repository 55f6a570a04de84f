"""How many units of a block join a step: a binomial number, by inverting 128 random bits.

A uniform number of 53 bits is too coarse where a sample rate is small: at 1e-7 its steps are 1e-9
of the rate. Blocks are as large as one draw of a unit is expected in them, so that the count's
probabilities are of ordinary size, and 128 bits are far finer than anything an accountant sees.
"""

from collections.abc import Iterator
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

BITS = 128
DIGITS = 100
"""Decimal digits of the thresholds' arithmetic: 128 bits are 39."""
LEAST_BLOCK = 16
"""Smaller blocks than this would seldom have as many different places as they need at once."""
LARGEST_BLOCK = 2**40


def block_size(rate: float) -> int:
    """Returns the largest power of two of which ``rate`` is at most one; 1 where that is small."""
    size = 1
    while 2 * size * rate <= 1 and size < LARGEST_BLOCK:
        size *= 2
    return size if size >= LEAST_BLOCK else 1


def thresholds(size: int, rate: float) -> tuple[int, ...]:
    """Returns 2^128 times the binomial distribution function at 0, 1, 2, …, rounded down.

    A uniform number below 2^128 stands for as many units as there are thresholds at most equal to
    it. What is beyond the last threshold has a probability below 2^-128.

    Args:
        size: Units in a block.
        rate: Probability of each, taken as the exact number that the float is.
    """
    with localcontext(Context(prec=DIGITS)):
        return tuple(_thresholds(size, Decimal(rate)))


def _thresholds(size: int, rate: Decimal) -> Iterator[int]:
    whole, cumulative = Decimal(2**BITS), Decimal(0)
    rest = 1 - rate
    probability = rest**size
    for count in range(size):
        cumulative += probability
        if (1 - cumulative) * whole < 1:
            return
        yield int(cumulative * whole)
        # rest is 0 only at rate 1, whose blocks hold one unit
        if rest:
            probability *= (size - count) * rate / ((count + 1) * rest)


class BinomialBlocks:
    """Counts of blocks of one size at one rate.

    Guarantees:
        Each count has its binomial probability to 2^-128, so that all the counts of a run of n
        blocks differ from exact ones with a probability below 100 n 2^-128, and each unit's
        probability of joining is ``rate`` to 2^-120 of it.
    """

    def __init__(self, rate: float) -> None:
        """Fits the block size to the rate, in (0, 1]."""
        self.size = block_size(rate)
        self.thresholds = thresholds(self.size, rate)

    def counts(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns a count for each row.

        Args:
            words: Uniform bits, shape (blocks, 2), the higher half of each number first.
        """
        high, low = words[:, 0], words[:, 1]
        counts = np.zeros(len(words), dtype=np.int64)
        for threshold in self.thresholds:
            top, bottom = (np.uint64(part) for part in divmod(threshold, 2**64))
            counts += (high > top) | ((high == top) & (low >= bottom))
        return counts
