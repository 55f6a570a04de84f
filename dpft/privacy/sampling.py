"""Poisson sampling: the only sampler whose batches the accountant's event describes.

Each unit joins with the same probability, independently of all others. That is drawn block by
block: how many units of a block join is binomial, and which ones is any subset of that many, all
equally likely. Blocks hold about one drawn unit, so a draw costs what it gives, however many units
there are: a number for each unit would be five thousand million for C4.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpft.privacy.binomial import BinomialBlocks
from dpft.privacy.cipher import Address, Purpose, keystream
from dpft.privacy.keys import AgingKey
from dpft.privacy.plan import ClippingPlan

SAMPLING_SOURCE = "ChaCha20, binomial blocks of 128 bits"
"""How draws come from their keys; runs that draw otherwise cannot redo each other's steps."""
CHUNK = 2**20
"""Blocks that share an address."""
_WORD_BYTES = 8


class SamplingStream:
    """Uniform 64-bit words of a secret key, for any step."""

    def __init__(self, key: AgingKey) -> None:
        """Draws from ``key``, which ages with the steps."""
        self._key = key

    def words(self, count: int, *, step: int, part: int = 0, chunk: int = 0) -> NDArray[np.uint64]:
        """Returns ``count`` words: the first ones are the same for any count.

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
    """Draws each step's logical batch at the sample rate of the plan's mechanism.

    Guarantees:
        Every unit joins a step independently of all others and of other steps with
        probability ``plan.drawn_rate``, as ``BinomialBlocks`` says: that of the mechanism, where
        there is noise. A batch may be empty. Its size and its members are private. A draw takes
        time and memory for the units it gives, not for those there are.
    """

    def __init__(self, plan: ClippingPlan, stream: SamplingStream) -> None:
        """Binds the sampler to the plan that is accounted for, where there is noise."""
        self._blocks = BinomialBlocks(plan.drawn_rate)
        self._stream = stream

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Returns the indices of one logical batch, ascending.

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
        """Returns the places, ascending, of the units that join in a chunk's blocks."""
        words = self._stream.words(2 * blocks, step=step, chunk=chunk)
        counts = self._blocks.counts(words.reshape(-1, 2))
        places = np.concatenate(
            [np.empty(0, dtype=np.int64), *self._subsets(counts, step=step, chunk=chunk)]
        )
        return np.sort(places)

    def _subsets(
        self, counts: NDArray[np.int64], *, step: int, chunk: int
    ) -> Iterator[NDArray[np.int64]]:
        """Yields the places that join, those of any block all at once.

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
