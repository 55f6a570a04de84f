"""Uniform numbers one draw after the other, for a search, which has no steps to address them by."""

import numpy as np
from numpy.typing import NDArray

from dpft.privacy.cipher import Address, Purpose, keystream


class UniformStream:
    """Uniform float64 numbers in [0, 1) from ChaCha20, 53 random bits each."""

    def __init__(self, key: bytes) -> None:
        """Starts the stream of ``key`` (32 bytes)."""
        self._key = key
        self._draws = 0

    def draw(self, count: int) -> NDArray[np.float64]:
        """Returns the next ``count`` numbers, shape (count,)."""
        address = Address(Purpose.SEARCH, block=self._draws)
        self._draws += 1
        words = np.frombuffer(keystream(self._key, address, 8 * count), dtype=np.uint64)
        return (words >> np.uint64(11)) * np.float64(2.0**-53)
