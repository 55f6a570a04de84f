"""ChaCha20 (RFC 8439, section 2.3) in torch's integer operations, for accelerators.

Bit for bit the keystream of ``cipher.keystream``, made where it is needed: copying it from the CPU
would cost more than drawing it. A state is 16 words of 32 bits; all its counters are worked on at
once, as four rows of shape (4, counters). Torch has no unsigned shift of int32, so a shift to the
right is masked. On an accelerator the 700 small operations are compiled into few kernels, where
torch.compile works; the bits are the same without.
"""

import logging
import struct
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from dpft.privacy.cipher import Address

_CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
_DOUBLE_ROUNDS = 10
_COUNTER_BYTES = 64
Rows = tuple[Tensor, Tensor, Tensor, Tensor]
logger = logging.getLogger(__name__)


def keystream_words(key: bytes, address: Address, count: int, device: torch.device) -> Tensor:
    """Returns keystream as words of 64 bits, lowest byte first: int64, shape (count,).

    Args:
        key: 32 secret bytes.
        address: Where it begins.
        count: Of words.
        device: Where to compute and to leave it.
    """
    counters = -(-8 * count // _COUNTER_BYTES)
    rows = torch.tensor(
        [*_CONSTANTS, *struct.unpack("<8i", key), 0, *struct.unpack("<3i", address.nonce())],
        dtype=torch.int32,
    )
    state = rows.view(4, 4, 1).to(device).repeat(1, 1, counters)
    state[3, 0] = torch.arange(counters, dtype=torch.int32, device=device)
    mixed = _rounds_on(device.type)(*state.unbind(0))
    words = (torch.stack(mixed) + state).view(16, counters).t().contiguous()
    return words.view(-1).view(torch.int64)[:count]


@cache
def _rounds_on(kind: str) -> Callable[..., Rows]:
    """Returns ``_rounds`` for a kind of device: compiled, except for the CPU."""
    if kind == "cpu":
        return _rounds
    compiled = torch.compile(_rounds, dynamic=True)

    def run(*rows: Tensor) -> Rows:
        nonlocal compiled
        try:
            return compiled(*rows)
        except RuntimeError as error:  # the compiler's errors are; a machine may lack what it needs
            logger.warning("noise is drawn slower: torch.compile failed (%s)", type(error).__name__)
            compiled = _rounds
            return _rounds(*rows)

    return run


def _rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Rows:
    """Returns four rows of shape (4, counters) after ten column rounds and ten diagonal ones."""
    for _ in range(_DOUBLE_ROUNDS):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        # The diagonals become columns, and after the round columns again.
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return a, b, c, d


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Rows:
    """Returns the rows after the quarter round of RFC 8439, section 2.1, on each column."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(words: Tensor, bits: int) -> Tensor:
    """Returns int32 words with their bits rotated to the left."""
    low_bits: int = 2**bits - 1
    return (words << bits) | ((words >> (32 - bits)) & low_bits)
