"""Secret random bits from ChaCha20 (RFC 8439), addressable by position.

A linear generator such as MT19937 gives its whole state away through what is drawn from it, however
well it was seeded: released weights show noise, noise shows the state, and the state shows all
other noise. A stream cipher does not: who could tell its keystream from true randomness, or
continue it, would have broken ChaCha20.

Every draw has an address, which becomes the cipher's 96-bit nonce; the 32-bit counter of RFC 8439
starts at 0 for each. So two addresses share no keystream, and a draw depends on its address alone:
in whatever order, and by however many processes, the draws are made.

Keys are 256 bits from the operating system, one for each purpose, and age with the steps: the key
of the next step is a one-way function of this step's, which is forgotten when the step is done. So
whoever copies a checkpoint, or reads a running process's memory, learns nothing of the noise of the
steps before: their keys cannot be computed from the ones that are left.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import IntEnum

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

KEY_BYTES = 32
MAX_BYTES = 2**32 * 64
"""What one address can give: the counter has 32 bits, and each of its values gives 64 bytes."""
_COUNTER = bytes(4)


class Purpose(IntEnum):
    """What keystream is drawn for; part of every address."""

    NOISE = 1
    REFINEMENT = 2
    """Further digits of those of the noise's uniforms that are near 0."""
    SAMPLING = 3
    DROPOUT = 4
    GENERATOR = 5
    """The state of torch's generators, which fused kernels draw dropout from."""
    VIEWS = 6
    """Random views of a record, such as masked spans."""
    SEARCH = 7
    """The secret draw of a private search of hyper-parameters."""
    GROUPS = 8
    """Which group a unit is in, of a mechanism whose steps draw from groups in turn."""


@dataclass(frozen=True)
class Address:
    """Where keystream begins: purpose (8 bits), step (32), parameter (24) and block (32)."""

    purpose: Purpose
    step: int = 0
    """The run's step, counted from 0 across its phases."""
    parameter: int = 0
    """Place among all the model's parameters; 0 where the draw is of none."""
    block: int = 0
    """Which stretch of the draw."""

    def nonce(self) -> bytes:
        """Return the address as the 12 bytes of a nonce, each field's highest byte first.

        Raises:
            ValueError: A field is negative or too large.
        """
        fields = ((self.purpose, 1), (self.step, 4), (self.parameter, 3), (self.block, 4))
        try:
            return b"".join(value.to_bytes(size, "big") for value, size in fields)
        except OverflowError:
            raise ValueError(
                "step must be in [0, 2^32), parameter in [0, 2^24) and block in [0, 2^32), got"
                f" {self}."
            ) from None


def keystream(key: bytes, address: Address, size: int) -> bytearray:
    """Return ``size`` bytes of keystream.

    Args:
        key: 32 secret bytes.
        address: Where it begins.
        size: At most ``MAX_BYTES``.
    """
    out = bytearray(size)
    fill_with_keystream(key, address, out, zeros=bytes(size))
    return out


def fill_with_keystream(
    key: bytes, address: Address, out: bytearray | memoryview, *, zeros: bytes | memoryview
) -> None:
    """Fill ``out`` with keystream, without memory of its own.

    Args:
        key: 32 secret bytes.
        address: Where it begins.
        out: What to fill, at most ``MAX_BYTES``.
        zeros: As many zero bytes.
    """
    if len(out) > MAX_BYTES:
        raise ValueError(f"an address gives at most {MAX_BYTES} bytes, got a wish for {len(out)}.")
    # The library takes RFC 8439's counter, lowest byte first, and nonce as one.
    algorithm = algorithms.ChaCha20(key, _COUNTER + address.nonce())
    Cipher(algorithm, mode=None).encryptor().update_into(zeros, out)


_NEXT_STEP = b"dpft key of the next step"


def secret_key(purpose: str, noise_seed: int | None = None) -> bytes:
    """Return 32 bytes from the operating system, or, for tests, what a seed stands for.

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
        """Take ``key``, 32 bytes, as that of step ``step``."""
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
        """Return the key of a step.

        Raises:
            ValueError: The key is forgotten.
        """
        if step < self._step:
            raise ValueError(f"the key of step {step} is forgotten; step {self._step} is the first")
        key_step, key = self._latest if self._latest[0] <= step else (self._step, self._key)
        for _ in range(step - key_step):
            key = hmac.digest(key, _NEXT_STEP, hashlib.sha256)
        self._latest = (step, key)
        return key

    def forget(self, step: int) -> None:
        """Forget the keys of all steps before ``step``."""
        self._key, self._step = self.at(step), step
        self._latest = (step, self._key)
