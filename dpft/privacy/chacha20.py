"""ChaCha20 (RFC 8439, section 2.3) in torch's integer operations, for accelerators.

Bit for bit the keystream of ``cipher.keystream``, made where it is needed: copying it from the CPU
would cost more than drawing it. A state is 16 words of 32 bits; all its counters are worked on at
once, as four rows of shape (4, counters). Torch has no unsigned shift of int32, so a shift to the
right is masked. On an accelerator the 700 small operations are compiled into few kernels, where
torch.compile works; the bits are the same without.
"""

import logging
import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from dpft.devices import sent
from dpft.privacy.cipher import Address

_CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
_DOUBLE_ROUNDS = 10
_COUNTER_BYTES = 64
Rows = tuple[Tensor, Tensor, Tensor, Tensor]
logger = logging.getLogger(__name__)


def keystream_words(
    key: bytes, addresses: Sequence[Address], counts: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Returns keystream as words of 64 bits, lowest byte first: int64, shape (count,) for each.

    All of it is one computation, however many addresses there are.

    Args:
        key: 32 secret bytes.
        addresses: Where each begins.
        counts: Of words, of each.
        device: Where to compute and to leave it.
    """
    counters = [-(-8 * count // _COUNTER_BYTES) for count in counts]
    starts, total = list(accumulate(counters, initial=0)), sum(counters)
    fixed = sent([*_CONSTANTS, *struct.unpack("<8i", key)], torch.int32, device)
    # of each address where its counters start, and its nonce
    own = [
        (start, *struct.unpack("<3i", a.nonce()))
        for start, a in zip(starts, addresses, strict=False)
    ]
    which = torch.repeat_interleave(
        torch.arange(len(counters), device=device),
        sent(counters, torch.int64, device),
        output_size=total,
    )
    state = torch.empty((4, 4, total), dtype=torch.int32, device=device)
    state[:3] = fixed.view(3, 4, 1)
    state[3] = sent(own, torch.int32, device).t().index_select(1, which)
    state[3, 0] = torch.arange(total, dtype=torch.int32, device=device) - state[3, 0]
    mixed = _rounds_on(device.type)(*state.unbind(0))
    words = (torch.stack(mixed) + state).view(16, total).t().contiguous()
    words = words.view(-1).view(torch.int64)
    return [words[8 * start : 8 * start + n] for start, n in zip(starts, counts, strict=False)]


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
