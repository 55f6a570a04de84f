"""Uniform numbers of a cryptographic stream, which can be continued from a position."""

from typing import Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms


class UniformStream:
    """Uniform float64 numbers in [0, 1) from ChaCha20, 53 random bits each.

    float32 uniforms would raise small sampling rates by percents (DESIGN section 3).
    """

    def __init__(self, key: bytes, position: int = 0) -> None:
        """Starts the stream of ``key`` (32 bytes) at number ``position``."""
        self._key = key
        self.position = position

    def draw(self, count: int) -> np.ndarray:
        """Returns the next ``count`` numbers, shape (count,), float64."""
        # One nonce per draw, no two draws start at one position unless they are one replayed.
        nonce = b"\0" * 8 + self.position.to_bytes(8, "little")
        cipher = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        words = np.frombuffer(cipher.update(bytes(8 * count)), dtype=np.uint64)
        self.position += count
        return (words >> np.uint64(11)) * 2.0**-53

    def state(self) -> dict[str, str | int]:
        """Returns what ``from_state`` needs; secret."""
        return {"key": self._key.hex(), "position": self.position}

    @classmethod
    def from_state(cls, state: dict[str, str | int]) -> Self:
        """Returns the stream as it was when ``state`` was taken."""
        return cls(bytes.fromhex(str(state["key"])), int(state["position"]))
