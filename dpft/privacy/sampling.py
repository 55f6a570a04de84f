"""Poisson sampling: the only sampler whose batches the accountant's event describes."""

import numpy as np
from numpy.typing import NDArray

from dpft.privacy.cipher import Address, Purpose, keystream
from dpft.privacy.keys import AgingKey
from dpft.privacy.plan import PrivacyPlan

BLOCK = 2**20
"""Numbers that share an address."""
_WORD_BYTES = 8


class SamplingStream:
    """Uniform float64 numbers in [0, 1) of a secret key, 53 random bits each, for any step.

    float32 numbers would raise small sampling rates by percents.
    """

    def __init__(self, key: AgingKey) -> None:
        """Draws from ``key``, which ages with the steps."""
        self._key = key

    def draw(self, count: int, *, step: int) -> NDArray[np.float64]:
        """Returns a step's numbers, shape (count,): the first ones are the same for any count."""
        key = self._key.at(step)
        blocks = [
            uniforms(keystream(key, Address(Purpose.SAMPLING, step, 0, block), _WORD_BYTES * size))
            for block, size in enumerate(_sizes(count))
        ]
        return np.concatenate([np.empty(0), *blocks])


class PoissonSampler:
    """Draws each step's logical batch at the sample rate of the plan's mechanism.

    Guarantees:
        Every unit joins a step independently of all others and of other steps with
        probability ``plan.mechanism().sample_rate``, to 2**-53. A batch may be empty. Its size
        and its members are private.
    """

    def __init__(self, plan: PrivacyPlan, stream: SamplingStream) -> None:
        """Binds the sampler to the plan that is accounted for."""
        self._sample_rate = plan.mechanism().sample_rate
        self._stream = stream

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Returns the indices of one logical batch, ascending.

        Args:
            num_units: How many units there really are; private, and it moves neither the
                sample rate nor the divisor.
            step: The run's step, counted from 0.
        """
        numbers = self._stream.draw(num_units, step=step)
        return [int(index) for index in np.flatnonzero(numbers < self._sample_rate)]


def uniforms(bits: bytearray) -> NDArray[np.float64]:
    """Returns a number in [0, 1) of each 8 bytes: a multiple of 2^-53, float64."""
    return (np.frombuffer(bits, dtype=np.uint64) >> np.uint64(11)) * np.float64(2.0**-53)


def _sizes(count: int) -> list[int]:
    """Returns how many numbers of ``count`` each block has."""
    return [min(BLOCK, count - start) for start in range(0, count, BLOCK)]
