"""Poisson sampling of examples or privacy units.

Each unit joins with the same probability, independently of all others. Units are drawn block by
block. The number of units of a block that join is binomial, and all subsets of this size are
equally likely. A block contains about one drawn unit, so the cost of a draw depends only on the
number of units drawn. With one random number per unit, a draw from C4 would need five billion
random numbers.

The count of a block is a binomial number, computed by inversion from 128 random bits. A uniform
number of 53 bits is too coarse for a small sample rate: at a rate of 1e-7, its steps are 1e-9 of
the rate. Blocks are so large that about one unit is drawn from each, so no likely count has a tiny
probability. The resolution of 128 bits is far finer than any difference that an accountant can
compute.
"""

from collections.abc import Iterator
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from dpft.privacy.cipher import Address, AgingKey, Purpose, keystream

BITS = 128
DIGITS = 100
"""Decimal digits of the arithmetic for the thresholds; 128 bits are 39 digits."""
LEAST_BLOCK = 16
"""Minimum block size above 1. In smaller blocks, a draw would rarely give enough distinct
places."""
LARGEST_BLOCK = 2**40


def block_size(rate: float) -> int:
    """Return the largest power of two with ``size * rate <= 1``; 1 if below ``LEAST_BLOCK``.

    The size is at most ``LARGEST_BLOCK``.
    """
    size = 1
    while 2 * size * rate <= 1 and size < LARGEST_BLOCK:
        size *= 2
    return size if size >= LEAST_BLOCK else 1


def thresholds(size: int, rate: float) -> tuple[int, ...]:
    """Return 2^128 times the binomial distribution function at 0, 1, 2, …, rounded down.

    A uniform number below 2^128 is converted to a count: the number of thresholds that it reaches.
    Counts beyond the last threshold have a probability below 2^-128.

    Args:
        size: Number of units in a block.
        rate: Probability of each unit, as the exact value of the float.
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
        # `rest` is 0 only at rate 1, for which a block contains one unit
        if rest:
            probability *= (size - count) * rate / ((count + 1) * rest)


class BinomialBlocks:
    """Counts of blocks of one size at one sample rate.

    Guarantees:
        Each count has its binomial probability up to 2^-128. The counts of n blocks therefore
        differ from exact draws with a probability below 100 n 2^-128. Each unit joins with
        probability ``rate``, up to a relative error of 2^-120.
    """

    def __init__(self, rate: float) -> None:
        """Choose the block size for a rate in (0, 1]."""
        self.size = block_size(rate)
        self.thresholds = thresholds(self.size, rate)

    def counts(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return one count per row.

        Args:
            words: Uniform bits, shape (blocks, 2), with the high half of each number first.
        """
        high, low = words[:, 0], words[:, 1]
        counts = np.zeros(len(words), dtype=np.int64)
        for threshold in self.thresholds:
            top, bottom = (np.uint64(part) for part in divmod(threshold, 2**64))
            counts += (high > top) | ((high == top) & (low >= bottom))
        return counts


SAMPLING_SOURCE = "ChaCha20, binomial blocks of 128 bits"
"""Name of the algorithm that derives draws from keys. A run cannot repeat steps of a run with
another algorithm."""
CHUNK = 2**20
"""Number of blocks that share an address."""
GROUPED = 2**16
"""Number of units whose groups share an address."""
_WORD_BYTES = 8


class SamplingStream:
    """Uniform 64-bit words from a secret key, for any step."""

    def __init__(self, key: AgingKey) -> None:
        """Draw from ``key``, which changes with each step."""
        self._key = key

    def words(self, count: int, *, step: int, part: int = 0, chunk: int = 0) -> NDArray[np.uint64]:
        """Return ``count`` words; the first words do not depend on ``count``.

        Args:
            count: Number of words.
            step: Step of the run, counted from 0.
            part: Index of the draw within the step, below 2^24.
            chunk: Index of the chunk of blocks, below 2^32.
        """
        address = Address(Purpose.SAMPLING, step, part, chunk)
        bits = keystream(self._key.at(step), address, _WORD_BYTES * count)
        return np.frombuffer(bits, dtype=np.uint64)


class PoissonSampler:
    """Sampler that draws the logical batch of each step at one rate.

    Guarantees:
        Every unit joins a step with probability ``rate``, independently of all other units and of
        other steps, as precisely as ``BinomialBlocks`` states. A batch may be empty. Its size and
        its members are private. The time and memory of a draw depend only on the number of units
        drawn.
    """

    def __init__(self, rate: float, stream: SamplingStream) -> None:
        """Draw at ``rate``, the sample rate of a plan, which is accounted for if there is noise."""
        self._blocks = BinomialBlocks(rate)
        self._stream = stream

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Return the indices of one logical batch, in ascending order.

        Args:
            num_units: Actual number of units; private. It changes neither the sample rate nor the
                divisor.
            step: Step of the run, counted from 0.
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
        """Return the places of the units that join in the blocks of a chunk, in ascending order."""
        words = self._stream.words(2 * blocks, step=step, chunk=chunk)
        counts = self._blocks.counts(words.reshape(-1, 2))
        places = np.concatenate(
            [np.empty(0, dtype=np.int64), *self._subsets(counts, step=step, chunk=chunk)]
        )
        return np.sort(places)

    def _subsets(
        self, counts: NDArray[np.int64], *, step: int, chunk: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the places of the units that join; all places of a block are yielded at once.

        The places of a block are drawn with replacement, and all of them are drawn again as long as
        two are equal. Every subset of this size is therefore equally likely.
        """
        waiting, part = np.flatnonzero(counts), 0
        while waiting.size:
            part += 1
            owners = np.repeat(waiting, counts[waiting])
            words = self._stream.words(owners.size, step=step, part=part, chunk=chunk)
            # The block size is a power of two, so the mask keeps every place equally likely.
            within = (words & np.uint64(self._blocks.size - 1)).astype(np.int64)
            places = np.sort(owners * self._blocks.size + within)
            twice = places[1:][places[1:] == places[:-1]] // self._blocks.size
            again = np.isin(places // self._blocks.size, twice)
            yield places[~again]
            waiting = np.unique(twice)


class CyclicPoissonSampler:
    """Sampler that draws the logical batch of each step from one of several groups, in turn.

    Guarantees:
        Each unit is in one group, which a secret hash of its place chooses independently of all
        other units. The group stays the same as long as the key does. A unit joins a step of its
        group with probability ``rate``, independently of all other units and of other steps. It
        never joins a step of another group, so two steps with the same unit are at least ``groups``
        apart.
    """

    def __init__(self, rate: float, stream: SamplingStream, *, groups: int, key: bytes) -> None:
        """Draw at ``rate`` within a group.

        Args:
            rate: Sample rate of a plan.
            stream: As for ``PoissonSampler``.
            groups: Number of groups.
            key: 32 secret bytes. If the key were known, or if the group depended only on the place,
                then removing a record would move all later records to other groups. The epsilon of
                one record does not bound such a change.
        """
        self._poisson = PoissonSampler(rate, stream)
        self._groups, self._key = groups, key
        self._known: dict[int, NDArray[np.unsignedinteger]] = {}

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Return the indices of one logical batch, ascending; see ``PoissonSampler.draw``."""
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
