"""Secret keys: 256 bits from the operating system, one for each purpose, that age with the steps.

The key of the next step is a one-way function of this step's, and this step's is forgotten when the
step is done. So whoever copies a checkpoint, or reads a running process's memory, learns nothing of
the noise of the steps before: their keys cannot be computed from the ones that are left.
"""

import hashlib
import hmac
import secrets

from dpft.privacy.cipher import KEY_BYTES

_NEXT_STEP = b"dpft key of the next step"


def secret_key(purpose: str, noise_seed: int | None = None) -> bytes:
    """Returns 32 bytes from the operating system, or, for tests, what a seed stands for.

    Args:
        purpose: What the key is for; keys of one seed differ by it.
        noise_seed: None for privacy; a number makes the key predictable.
    """
    if noise_seed is None:
        return secrets.token_bytes(KEY_BYTES)
    return hashlib.sha256(f"dpft {purpose} {noise_seed}".encode()).digest()


class AgingKey:
    """The key of a step, from which those of later steps follow and those of earlier ones do not.

    Guarantees:
        After ``forget(step)`` this object holds nothing from which the key of a step before
        ``step`` can be computed, if HMAC-SHA256 is one-way. Python may leave copies of forgotten
        bytes in freed memory until they are overwritten.
    """

    def __init__(self, key: bytes, step: int = 0) -> None:
        """Takes ``key``, 32 bytes, as that of step ``step``."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key must have {KEY_BYTES} bytes, got {len(key)}.")
        self._key, self._step = key, step
        self._latest = (step, key)
        """The last key asked for, so that its blocks do not derive it again and again."""

    @property
    def step(self) -> int:
        """The earliest step whose key is known."""
        return self._step

    def at(self, step: int) -> bytes:
        """Returns the key of a step.

        Raises:
            ValueError: It is forgotten.
        """
        if step < self._step:
            raise ValueError(f"the key of step {step} is forgotten; step {self._step} is the first")
        known, key = self._latest if self._latest[0] <= step else (self._step, self._key)
        for _ in range(step - known):
            key = hmac.digest(key, _NEXT_STEP, hashlib.sha256)
        self._latest = (step, key)
        return key

    def forget(self, step: int) -> None:
        """Forgets the keys of all steps before ``step``."""
        self._key, self._step = self.at(step), step
        self._latest = (step, self._key)
