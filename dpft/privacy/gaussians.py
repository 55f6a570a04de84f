"""Standard Gaussian numbers in float64 from secret bits (Box and Muller 1958).

Two numbers k of 53 bits give two Gaussians. Each k becomes ``u = (k + 1/2) 2^-53``. In float64, the
sum is rounded to even for k of at least 2^52, so that u near 1 is a multiple of 2^-52. The
Gaussians are ``sqrt(-2 ln u)`` (the radius) times the cosine and the sine of ``2 pi u'``. Without
further bits, radii would end at 8.65 standard deviations, and the largest radii would be far apart.
If k is below 2^32, further words therefore extend u until 32 of its bits are significant. Radii
then reach beyond ``REACH``.

An accelerator draws its bits itself (``keystream_words``), because copying them from the CPU would
cost more than drawing them. The function computes ChaCha20 (RFC 8439, section 2.3) with torch's
integer operations, bit for bit as ``cipher.keystream``. A state has 16 words of 32 bits. All
counters are processed at once, as four rows of shape (4, counters). torch has no unsigned shift of
int32, so shifts to the right are masked. The 700 small operations are compiled into a few kernels
if torch.compile works. The bits are the same without compilation.
"""

import logging
import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from dpft.devices import sent
from dpft.privacy.cipher import Address

logger = logging.getLogger(__name__)

REACH = 18.8
"""Number of standard deviations up to which the tails are Gaussian. Beyond this, an
outcome may be possible for only one of two neighboring data sets, so no plan may rely on such
outcomes (``plan_building``). u extends to 2^-310, so radii end at 20.7. Below 2^-277 (19.6), u has
fewer than 32 significant bits."""
WORD_BYTES = 8
REFINING_WORDS = 4
"""Number of 64-bit words by which a uniform near 0 may be extended."""
_BITS = 53
_SIGNIFICANT = 2**32
Words = Callable[[int], bytearray]
"""Function that returns the given number of words of 64 secret bits."""
Extensions = Callable[[Sequence[int]], bytearray]
"""Function that returns ``REFINING_WORDS`` further words for the uniform at each given place."""


class BoxMuller:
    """Box-Muller transform of secret bits into Gaussians, in memory that is reused.

    New memory for every block would cost as much time as the cipher.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepare to work on a device; the first call that needs memory allocates it."""
        self._device = device
        self._numbers = torch.empty(0, dtype=torch.int64, device=device)
        self._floats = torch.empty((3, 0), dtype=torch.float64, device=device)

    def pairs(self, words: Tensor, refining_words: Words) -> tuple[Tensor, Tensor]:
        """Return two halves of standard Gaussians, float64, valid until the next call.

        Args:
            words: Secret bits, int64, shape (2 * pairs,): first the bits of the radii, then those
                of the angles.
            refining_words: Returns words from the beginning of a separate stream, which extend the
                uniforms near 0: ``REFINING_WORDS`` words per uniform, in order.

        Returns:
            Radii times cosines, and radii times sines, shape (pairs,) each.
        """
        half = len(words) // 2

        def extended(few: Sequence[int]) -> bytearray:
            return refining_words(REFINING_WORDS * len(few))

        return self.pairs_of(words[:half], words[half:], extended)

    def pairs_of(
        self, radii_words: Tensor, angle_words: Tensor, extended: Extensions
    ) -> tuple[Tensor, Tensor]:
        """Return the Gaussians of several streams together; see ``pairs``.

        Args:
            radii_words: Secret bits of the radii, int64, shape (pairs,).
            angle_words: Secret bits of the angles, int64, shape (pairs,).
            extended: Returns the words that extend the uniforms at the given places, in their
                order.
        """
        pairs = len(radii_words)
        if len(self._numbers) < pairs:
            self._numbers = self._numbers.new_empty(pairs)
            self._floats = self._floats.new_empty((3, pairs))
        numbers, (radii, cosines, sines) = self._numbers[:pairs], self._floats[:, :pairs]
        self._uniforms(radii_words, numbers, radii)
        radii.log_()
        _refine(radii, numbers, extended)
        radii.mul_(-2).sqrt_()
        self._uniforms(angle_words, numbers, sines)
        sines.mul_(2 * math.pi)
        torch.cos(sines, out=cosines)
        return cosines.mul_(radii), sines.sin_().mul_(radii)

    @staticmethod
    def _uniforms(words: Tensor, numbers: Tensor, out: Tensor) -> None:
        """Write k to ``numbers`` and ``(k + 1/2) 2^-53`` to ``out``."""
        # The shift copies the sign bit downwards, and the mask removes the copies.
        torch.bitwise_right_shift(words, 64 - _BITS, out=numbers).bitwise_and_(2**_BITS - 1)
        out.copy_(numbers).add_(0.5).mul_(2.0**-_BITS)


def _refine(logarithms: Tensor, numbers: Tensor, extended: Extensions) -> None:
    """Replace the logarithms of uniforms too close to 0 to have 32 significant bits.

    The host waits for an accelerator once, and a second time if there are such uniforms.
    """
    few = (numbers < _SIGNIFICANT).nonzero()[:, 0]
    if not len(few):
        return
    places, drawn = torch.stack((few, numbers.index_select(0, few))).tolist()
    extensions = bytes(extended(places))
    size = WORD_BYTES * REFINING_WORDS
    refined = [
        refined_logarithm(number, extensions[at * size : (at + 1) * size])
        for at, number in enumerate(drawn)
    ]
    logarithms.index_copy_(0, few, sent(refined, torch.float64, logarithms.device))


def refined_logarithm(number: int, extension: bytes) -> float:
    """Return ``ln((k + 1/2) 2^-bits)`` with k extended until 32 of its bits are significant.

    Args:
        number: The first 53 bits, k.
        extension: ``REFINING_WORDS`` further words, each with its highest byte first.
    """
    bits = _BITS
    for place in range(REFINING_WORDS):
        if number >= _SIGNIFICANT:
            break
        word = extension[place * WORD_BYTES : (place + 1) * WORD_BYTES]
        number = (number << 64) | int.from_bytes(word, "big")
        bits += 64
    return math.log(2 * number + 1) - (bits + 1) * math.log(2)


_CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
_DOUBLE_ROUNDS = 10
_COUNTER_BYTES = 64
Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def keystream_words(
    key: bytes, addresses: Sequence[Address], counts: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Return keystream as 64-bit words, lowest byte first: int64, shape (count,) per address.

    One computation draws the words of all addresses.

    Args:
        key: 32 secret bytes.
        addresses: Start of each keystream.
        counts: Number of words for each address.
        device: Device for the computation and the result.
    """
    counters = [-(-8 * count // _COUNTER_BYTES) for count in counts]
    starts, total = list(accumulate(counters, initial=0)), sum(counters)
    fixed = sent([*_CONSTANTS, *struct.unpack("<8i", key)], torch.int32, device)
    # For each address: the place where its counters start, and its nonce.
    starts_and_nonces = [
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
    state[3] = sent(starts_and_nonces, torch.int32, device).t().index_select(1, which)
    state[3, 0] = torch.arange(total, dtype=torch.int32, device=device) - state[3, 0]
    mixed = _rounds_on(device.type)(*state.unbind(0))
    words = (torch.stack(mixed) + state).view(16, total).t().contiguous()
    words = words.view(-1).view(torch.int64)
    return [words[8 * start : 8 * start + n] for start, n in zip(starts, counts, strict=False)]


@cache
def _rounds_on(kind: str) -> Callable[..., Rows]:
    """Return ``_rounds`` for a kind of device, compiled except for the CPU."""
    if kind == "cpu":
        return _rounds
    compiled = torch.compile(_rounds, dynamic=True)

    def run(*rows: Tensor) -> Rows:
        nonlocal compiled
        try:
            return compiled(*rows)
        except RuntimeError as error:  # includes compiler errors: the machine may lack dependencies
            logger.warning(
                "noise generation is slower, because torch.compile failed (%s)",
                type(error).__name__,
            )
            compiled = _rounds
            return _rounds(*rows)

    return run


def _rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Rows:
    """Return four rows of shape (4, counters) after ten column rounds and ten diagonal rounds."""
    for _ in range(_DOUBLE_ROUNDS):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        # The diagonals become columns, and are moved back after the round.
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return a, b, c, d


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Rows:
    """Return the rows after the quarter round of RFC 8439, section 2.1, on each column."""
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
    """Return int32 words with their bits rotated to the left."""
    low_bits: int = 2**bits - 1
    return (words << bits) | ((words >> (32 - bits)) & low_bits)
