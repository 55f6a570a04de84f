"""Secret bits: ChaCha20 (RFC 8439), any stretch of which can be drawn without the ones before it.

A linear generator such as MT19937 gives its whole state away through what is drawn from it, however
well it was seeded: released weights show noise, noise shows the state, and the state shows all
other noise. A stream cipher does not: who could tell its keystream from true randomness, or
continue it, would have broken ChaCha20.

Every draw has an address, which becomes the cipher's 96-bit nonce; the 32-bit counter of RFC 8439
starts at 0 for each. So two addresses share no keystream, and a draw depends on its address alone:
in whatever order, and by however many processes, the draws are made.
"""

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
        """Returns the address as the 12 bytes of a nonce, each field's highest byte first.

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
    """Returns ``size`` bytes of keystream.

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
    """Fills ``out`` with keystream, without memory of its own.

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
