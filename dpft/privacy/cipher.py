"""Secret random bits from ChaCha20 (RFC 8439), addressable by position.

A linear generator such as MT19937 reveals its whole state through its outputs, no matter how it was
seeded. Released weights reveal noise, noise reveals the state, and the state reveals all other
noise. A stream cipher does not have this weakness: distinguishing its keystream from true
randomness, or predicting it, would break ChaCha20.

Every draw has an address, which becomes the 96-bit nonce of the cipher. The 32-bit counter of RFC
8439 starts at 0 for each address. Two addresses therefore share no keystream. A draw depends only
on its key and address, in any order and with any number of processes.

Keys have 256 bits from the operating system. There is one key per purpose, and it changes with each
step: the key of the next step is a one-way function of the key of this step, which is forgotten at
the end of the step. A copy of a checkpoint or of the memory of a running process therefore reveals
nothing about the noise of earlier steps, whose keys cannot be computed from the remaining keys.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import IntEnum

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

KEY_BYTES = 32
MAX_BYTES = 2**32 * 64
"""Maximum number of bytes of one address: the counter has 2^32 values, each for 64 bytes."""
_COUNTER = bytes(4)


class Purpose(IntEnum):
    """Purpose of a draw, which is a part of its address."""

    NOISE = 1
    REFINEMENT = 2
    """Further digits of those uniforms of the noise that are close to 0."""
    SAMPLING = 3
    DROPOUT = 4
    GENERATOR = 5
    """State of torch's generators, which fused kernels use for dropout."""
    VIEWS = 6
    """Random views of a record, such as masked spans."""
    SEARCH = 7
    """Secret draw of a private hyperparameter search."""
    GROUPS = 8
    """Groups of units, for mechanisms whose steps draw from groups in turn."""


@dataclass(frozen=True)
class Address:
    """Start of a keystream: purpose (8 bits), step (32), parameter (24) and block (32)."""

    purpose: Purpose
    step: int = 0
    """Step of the run, counted from 0 across all phases."""
    parameter: int = 0
    """Place among all parameters of the model; 0 if the draw does not belong to a parameter."""
    block: int = 0
    """Number of the block within the draw."""

    def nonce(self) -> bytes:
        """Return the address as a nonce of 12 bytes, each field with its highest byte first.

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
        address: Start of the keystream.
        size: Number of bytes, at most ``MAX_BYTES``.
    """
    out = bytearray(size)
    fill_with_keystream(key, address, out, zeros=bytes(size))
    return out


def fill_with_keystream(
    key: bytes, address: Address, out: bytearray | memoryview, *, zeros: bytes | memoryview
) -> None:
    """Fill ``out`` with keystream, without allocating memory.

    Args:
        key: 32 secret bytes.
        address: Start of the keystream.
        out: Buffer to fill, at most ``MAX_BYTES``.
        zeros: Zero bytes, as many as ``out`` has.
    """
    if len(out) > MAX_BYTES:
        raise ValueError(f"out must have at most {MAX_BYTES} bytes, got {len(out)}.")
    # The library expects one value: the counter of RFC 8439, lowest byte first, and the nonce.
    algorithm = algorithms.ChaCha20(key, _COUNTER + address.nonce())
    Cipher(algorithm, mode=None).encryptor().update_into(zeros, out)


_NEXT_STEP = b"dpft key of the next step"


def secret_key(purpose: str, noise_seed: int | None = None) -> bytes:
    """Return 32 bytes from the operating system or, for tests, derived from a seed.

    Args:
        purpose: Purpose of the key; keys of one seed differ by purpose.
        noise_seed: None for privacy; a number makes the key predictable.
    """
    if noise_seed is None:
        return secrets.token_bytes(KEY_BYTES)
    return hashlib.sha256(f"dpft {purpose} {noise_seed}".encode()).digest()


class AgingKey:
    """Key of a step, from which the keys of later steps follow, but not those of earlier steps.

    Guarantees:
        After ``forget(step)``, this object contains nothing from which the key of a step before
        ``step`` can be computed, if HMAC-SHA256 is one-way. Python may leave copies of forgotten
        bytes in freed memory until they are overwritten.
    """

    def __init__(self, key: bytes, step: int = 0) -> None:
        """Use ``key``, 32 bytes, as the key of step ``step``."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key must have {KEY_BYTES} bytes, got {len(key)}.")
        self._key, self._step = key, step
        self._latest = (step, key)
        """The key that was returned last, kept so that the draws of a step derive it only once."""

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
