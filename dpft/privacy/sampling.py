"""Poisson sampling of examples or privacy units.

Each unit joins with the same probability, independently of all others. That is drawn block by
block: how many units of a block join is binomial, and which ones is any subset of that many, all
equally likely. Blocks hold about one drawn unit, so a draw costs what it gives, however many units
there are: a number for each unit would be five thousand million for C4.

A block's count is a binomial number by inverting 128 random bits. A uniform number of 53 bits is
too coarse where a sample rate is small: at 1e-7 its steps are 1e-9 of the rate. As a block is as
large as one draw is expected in it, the count's probabilities are of ordinary size, and 128 bits
are far finer than anything an accountant sees.
"""

from collections.abc import Iterator
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from dpft.privacy.cipher import Address, AgingKey, Purpose, keystream

BITS = 128
DIGITS = 100
"""Decimal digits of the thresholds' arithmetic: 128 bits are 39."""
LEAST_BLOCK = 16
"""Smaller blocks than this would seldom have as many different places as they need at once."""
LARGEST_BLOCK = 2**40


def block_size(rate: float) -> int:
    """Return the largest power of two of which ``rate`` is at most one; 1 where that is small."""
    size = 1
    while 2 * size * rate <= 1 and size < LARGEST_BLOCK:
        size *= 2
    return size if size >= LEAST_BLOCK else 1


def thresholds(size: int, rate: float) -> tuple[int, ...]:
    """Return 2^128 times the binomial distribution function at 0, 1, 2, …, rounded down.

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
        """Return a count for each row.

        Args:
            words: Uniform bits, shape (blocks, 2), the higher half of each number first.
        """
        high, low = words[:, 0], words[:, 1]
        counts = np.zeros(len(words), dtype=np.int64)
        for threshold in self.thresholds:
            top, bottom = (np.uint64(part) for part in divmod(threshold, 2**64))
            counts += (high > top) | ((high == top) & (low >= bottom))
        return counts


SAMPLING_SOURCE = "ChaCha20, binomial blocks of 128 bits"
"""How draws come from their keys; runs that draw otherwise cannot redo each other's steps."""
CHUNK = 2**20
"""Blocks that share an address."""
GROUPED = 2**16
"""Units whose groups share an address."""
_WORD_BYTES = 8


class SamplingStream:
    """Uniform 64-bit words of a secret key, for any step."""

    def __init__(self, key: AgingKey) -> None:
        """Draw from ``key``, which ages with the steps."""
        self._key = key

    def words(self, count: int, *, step: int, part: int = 0, chunk: int = 0) -> NDArray[np.uint64]:
        """Return ``count`` words: the first ones are the same for any count.

        Args:
            count: How many.
            step: The run's step, counted from 0.
            part: Which of the step's numbers, below 2^24.
            chunk: Which stretch of them, below 2^32.
        """
        address = Address(Purpose.SAMPLING, step, part, chunk)
        bits = keystream(self._key.at(step), address, _WORD_BYTES * count)
        return np.frombuffer(bits, dtype=np.uint64)


class PoissonSampler:
    """Draws each step's logical batch at one rate.

    Guarantees:
        Every unit joins a step independently of all others and of other steps with
        probability ``rate``, as ``BinomialBlocks`` says. A batch may be empty. Its size and its
        members are private. A draw takes time and memory for the units it gives, not for those
        there are.
    """

    def __init__(self, rate: float, stream: SamplingStream) -> None:
        """Draw at ``rate``: a plan's, which is accounted for where there is noise."""
        self._blocks = BinomialBlocks(rate)
        self._stream = stream

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Return the indices of one logical batch, ascending.

        Args:
            num_units: How many units there really are; private, and it moves neither the
                sample rate nor the divisor.
            step: The run's step, counted from 0.
        """
        size = self._blocks.size
        blocks = -(-num_units // size)
        drawn = [
            self._drawn(min(CHUNK, blocks - first), step, chunk) + first * size
            for chunk, first in enumerate(range(0, blocks, CHUNK))
        ]
        indices = np.concatenate([np.empty(0, dtype=np.int64), *drawn])
        # The last block may reach beyond the units: who is not there joins nothing.
        return [int(index) for index in indices[indices < num_units]]

    def _drawn(self, blocks: int, step: int, chunk: int) -> NDArray[np.int64]:
        """Return the places, ascending, of the units that join in a chunk's blocks."""
        words = self._stream.words(2 * blocks, step=step, chunk=chunk)
        counts = self._blocks.counts(words.reshape(-1, 2))
        places = np.concatenate(
            [np.empty(0, dtype=np.int64), *self._subsets(counts, step=step, chunk=chunk)]
        )
        return np.sort(places)

    def _subsets(
        self, counts: NDArray[np.int64], *, step: int, chunk: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the places that join, those of any block all at once.

        A block's places are drawn with replacement, and all of them anew while two are the same:
        so every subset of their number is equally likely.
        """
        waiting, part = np.flatnonzero(counts), 0
        while waiting.size:
            part += 1
            owners = np.repeat(waiting, counts[waiting])
            words = self._stream.words(owners.size, step=step, part=part, chunk=chunk)
            # A block's size is a power of two.
            within = (words & np.uint64(self._blocks.size - 1)).astype(np.int64)
            places = np.sort(owners * self._blocks.size + within)
            twice = places[1:][places[1:] == places[:-1]] // self._blocks.size
            again = np.isin(places // self._blocks.size, twice)
            yield places[~again]
            waiting = np.unique(twice)


class CyclicPoissonSampler:
    """Draws each step's logical batch from one of several groups, which take turns.

    Guarantees:
        Each unit is in one group, which a secret hash of its place chose independently of all
        others, for as long as the key is the same. It joins a step of its group with probability
        ``rate``, independently of all others and of other steps, and a step of another group never:
        two steps that it is in are ``groups`` apart or more.
    """

    def __init__(self, rate: float, stream: SamplingStream, *, groups: int, key: bytes) -> None:
        """Draw at ``rate`` within a group.

        Args:
            rate: Of a plan.
            stream: As ``PoissonSampler``.
            groups: How many there are.
            key: 32 secret bytes. Were it known, or a unit's group a matter of its place alone,
                then a record left out would move all that come after it to other groups, and the
                epsilon of one record would not bound that.
        """
        self._poisson = PoissonSampler(rate, stream)
        self._groups, self._key = groups, key
        self._known: dict[int, NDArray[np.unsignedinteger]] = {}

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Return the indices of one logical batch, ascending, as ``PoissonSampler.draw``."""
        drawn = self._poisson.draw(num_units, step=step)
        return [unit for unit in drawn if self.group_of(unit) == step % self._groups]

    def group_of(self, unit: int) -> int:
        """Return the group of the unit at a place; secret."""
        chunk, place = divmod(unit, GROUPED)
        if chunk not in self._known:
            bits = keystream(self._key, Address(Purpose.GROUPS, block=chunk), _WORD_BYTES * GROUPED)
            words = np.frombuffer(bits, dtype=np.uint64) % np.uint64(self._groups)
            self._known[chunk] = words.astype(np.min_scalar_type(self._groups - 1))
        return int(self._known[chunk][place])
