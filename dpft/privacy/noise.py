"""Add the Gaussian noise of a step, with the same bits on every device.

Each parameter is drawn for in blocks of ``BLOCK`` numbers of the whole, flattened parameter. A
block's noise depends on the step's key, the step, the parameter's place and the block's number,
and on nothing else: blocks may be drawn in any order, by any number of processes.

Noise is drawn and added in float64, and the sum is rounded once to a fixed grid, a power of two
between 2^-21 and 2^-20 of the noise's standard deviation, before anything else is done with it.
Without the grid, floating point would give the sum away (Mironov 2012): a float32 outcome within
2^-30 of a standard deviation of zero shows the float64 noise itself, and so does one in the tails,
where radii are few. On the grid, an outcome can be reached from a sum and from its neighbors
alike, by very many noises, as far as the tails go.

What remains of Mironov's attack: the noise is one of finitely many float64 numbers, so that an
outcome's probability is not exactly the Gaussian's. A cell of the grid holds all noises in an
interval of 2^-21 standard deviations. For one angle, radii around r come from uniforms u that are
spaced by 2^-53, or by 2^-32 u where that is less (``gaussians``), so radii are spaced by at most
2^-32 / r, a cell holds 2^11 r of them or more, and its probability is off by a ratio of at most
1 + 2^-11 / r: that is the worst, where u is near 2^-21 and r near 5.4; at r = 3 it is 1 + 2^-27, at
r = 1 less than 1 + 2^-30. Below r = 2^-21 there are only 512 radii, of which a run sees one with
a probability of 2^-43 a pair. All of it is for one angle, and some 2^29 / r angles share a cell and
average. Rounding of logarithm, root and cosine (2^-50, relative) moves noises across the edges of
cells by as little. Noises beyond 18.8 standard deviations are not counted on: see ``planning``.

``CorrelatedNoise`` is that of which b steps hang together, by the recursion of
``mechanisms.banded``. Each stretch of a block keeps its last b - 1 vectors x in float64, on the
rank that adds its noise. The recursion is of these, and never of rounded sums: what is released is
rounded once, as independent noise is, and rounding a released sum is post-processing. Each number
is computed by the same operations in the same order wherever it lies, so that it has the same bits
at any number of ranks.

``SignalMeter`` measures how long a step's signal and noise are, block by block before the two are
added: afterwards the noise is known only up to the rounding. Li et al. 2022 (arXiv 2110.05679),
section 3.1.1 and Figure 3, right: with g the mean of the clipped gradients and z the noise on it,
the average of ``r = ||g|| / ||z||`` over the first updates goes with the score at the end. It reads
the records, and epsilon does not cover it: it is for a run's private/ folder alone.
"""

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from dpft.parallel.rank_sums import FinishPieces, Piece, StepSums, finish_sums, pieces_between
from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy.cipher import Address, AgingKey, Purpose, fill_with_keystream, keystream
from dpft.privacy.gaussians import REFINING_WORDS, WORD_BYTES, BoxMuller, keystream_words

SIGNAL_STEPS = 30
"""Updates, from the first, over which the ratio is averaged (Li et al. 2022, section 3.1.1)."""


@dataclass(frozen=True, kw_only=True)
class SignalAndNoise:
    """The lengths of a step's mean clipped gradient and of the noise on it. Private."""

    signal: float
    """Norm of the clipped sum over the expected batch size; 0 where nobody was drawn."""
    noise: float
    """Norm of the noise over the expected batch size; above 0."""

    @property
    def ratio(self) -> float:
        """Signal to noise."""
        return self.signal / self.noise


class SignalMeter:
    """Adds up the squares of a step's clipped sum and of its noise, in float64.

    The noise counts in units of its standard deviation, so that no such unit overflows or vanishes.
    """

    def __init__(self, device: torch.device) -> None:
        """Start with nothing measured, on the device of what is to be measured."""
        self._signal = torch.zeros((), dtype=torch.float64, device=device)
        self._noise = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, clipped_sum: Tensor, gaussians: Tensor) -> None:
        """Add a block's squares; take memory of one block, and changes neither tensor.

        Args:
            clipped_sum: The block of the sum before its noise, any dtype.
            gaussians: What its noise is ``noise_std`` times of, float64, of the same shape.
        """
        self._signal += vector_norm(clipped_sum, dtype=torch.float64).square()
        self._noise += vector_norm(gaussians).square()

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Add what the other ranks measured of theirs."""
        both = ranks.total(torch.stack((self._signal, self._noise)))
        self._signal, self._noise = both[0], both[1]

    def mean(self, noise_std: float, expected_batch_size: float) -> SignalAndNoise:
        """Return what was measured of the mean gradient.

        Args:
            noise_std: Standard deviation of the noise on the sum.
            expected_batch_size: What the noisy sum is divided by.
        """
        return SignalAndNoise(
            signal=math.sqrt(float(self._signal)) / expected_batch_size,
            noise=math.sqrt(float(self._noise)) * noise_std / expected_batch_size,
        )


NOISE_SOURCE = (
    "ChaCha20 (RFC 8439), keyed by the operating system; float64 Gaussians, rounded once, with the"
    " sum, to a grid of 2^-21 to 2^-20 of their standard deviation"
)
BLOCK = 2**20
"""Numbers of a parameter that share an address; even."""
Correlate = Callable[[Piece, int, Tensor], Tensor]
"""Turns fresh Gaussians into a step's, in place, given their piece and their place in its block."""


class NoiseStream:
    """The secret source of a run's noise: a key that ages with the steps, and where to draw."""

    def __init__(self, device: torch.device, key: AgingKey) -> None:
        """Draw on ``device`` from ``key``, which ages with the steps."""
        self.device, self.key = device, key


class BlockNoise:
    """The blocks of one step's noise, one at a time, in memory that is used again."""

    def __init__(self, stream: NoiseStream, step: int) -> None:
        """Draw from the stream's key of ``step``, which must not be forgotten."""
        self._step, self._key = step, stream.key.at(step)
        self._device = stream.device
        self.draws_at_once = stream.device.type != "cpu"
        """Whether blocks are drawn together, and not one after the other in the same memory."""
        self._box_muller = BoxMuller(stream.device)
        self._zeros, self._bits = b"", bytearray()

    def halves(self, blocks: Sequence[Piece]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the first and the second half of each block's numbers.

        On a processor block by block, in memory that is used again; on an accelerator all blocks
        are drawn at once, in as many operations as one, and all of it stays until the next call.

        Args:
            blocks: Which block of which parameter, and how many numbers it has, at most ``BLOCK``,
                the same at every draw. Where that is odd the last number is one too many.
        """
        if not self.draws_at_once:
            for piece in blocks:
                words = self._words(piece.place, piece.block, _even(piece.block_length))
                yield self._box_muller.pairs(words, partial(self._refinement, piece))
            return
        counts = [_even(piece.block_length) for piece in blocks]
        addresses = [Address(Purpose.NOISE, self._step, p.place, p.block) for p in blocks]
        drawn = keystream_words(self._key, addresses, counts, self._device)
        radii = torch.cat([block_words[: len(block_words) // 2] for block_words in drawn])
        angles = torch.cat([block_words[len(block_words) // 2 :] for block_words in drawn])
        ends = list(accumulate(count // 2 for count in counts))

        def extended(places: Sequence[int]) -> bytearray:
            owners = Counter(bisect_right(ends, place) for place in places)
            extensions = (
                self._refinement(blocks[at], REFINING_WORDS * owners[at]) for at in owners
            )
            return bytearray(b"").join(extensions)

        cosines, sines = self._box_muller.pairs_of(radii, angles, extended)
        lengths = [count // 2 for count in counts]
        yield from zip(cosines.split(lengths), sines.split(lengths), strict=True)

    def _refinement(self, piece: Piece, words: int) -> bytearray:
        """Return the words that extend a block's uniforms near 0."""
        address = Address(Purpose.REFINEMENT, self._step, piece.place, piece.block)
        return keystream(self._key, address, WORD_BYTES * words)

    def _words(self, parameter: int, block: int, count: int) -> Tensor:
        """Return words of 64 secret bits on the processor, int64, shape (count,)."""
        size = WORD_BYTES * count
        if len(self._bits) < size:
            self._zeros, self._bits = bytes(size), bytearray(size)
        out = memoryview(self._bits)[:size]
        address = Address(Purpose.NOISE, self._step, parameter, block)
        fill_with_keystream(self._key, address, out, zeros=memoryview(self._zeros)[:size])
        return torch.frombuffer(self._bits, dtype=torch.int64, count=count)


def _even(count: int) -> int:
    return count + count % 2


def add_noise(
    parameters: Mapping[str, nn.Parameter] | Iterable[nn.Parameter] | StepSums,
    noise_std: float,
    noise: NoiseStream,
    step: int = 0,
    *,
    meter: SignalMeter | None = None,
    ranks: Ranks = ALONE,
    correlate: Correlate | None = None,
) -> None:
    """Add N(0, noise_std^2) to every coordinate of every trainable parameter's ``grad``.

    Args:
        parameters: All the model's parameters in the model's order, or by name: the place of one
            among them is part of its noise's address, so that what trains may change between
            steps. One that requires no grad is left alone; one without a ``grad`` gets noise alone.
            Or where else their sums are: of a sharded model each rank finishes its own shard.
        noise_std: noise_multiplier times the sensitivity of the sum.
        noise: Where the noise comes from.
        step: The run's step, counted from 0, a different one at each call for a run: the same
            step is the same noise.
        meter: Measures each block before its noise is added; it changes neither. None: nothing is
            measured.
        ranks: Whose gradients are added up first; each block of the sum gets its noise from one of
            them, which gives it to all.
        correlate: Makes the step's noise, of standard deviation 1 or more, of fresh Gaussians;
            None: they are the step's noise.

    Guarantees:
        Coordinates get independent draws, added in float64 whatever the gradient's dtype. Each
        noisy coordinate is rounded once to a multiple of ``grid(noise_std)`` and then cast, which
        for float32 is exact up to 8 standard deviations, and a fixed coarser grid beyond. However
        many ranks there are, a coordinate gets the same draw, and once.

    Raises:
        ValueError: ``noise_std`` is not positive and finite, or the key of the step is forgotten.
    """
    spacing = grid(noise_std)
    blocks = BlockNoise(noise, step)

    def add_noise_to_pieces(pieces: Sequence[tuple[Piece, Tensor]]) -> None:
        waiting: list[tuple[Tensor, Tensor]] = []
        drawn = blocks.halves([piece for piece, _ in pieces])
        for (piece, total), halves in zip(pieces, drawn, strict=True):
            for target, half, first in _overlaps(total, piece.offset, halves):
                if correlate is not None:
                    half = correlate(piece, first, half)
                if meter is not None:
                    meter.add(target.to(half.device), half)
                waiting.append((target, half))
            if not blocks.draws_at_once:  # the next block's numbers take the place of these
                _add(waiting, noise_std, spacing)
                waiting = []
        if waiting:
            _add_at_once(waiting, noise_std, spacing)

    if isinstance(parameters, Mapping | Iterable):
        values = parameters.values() if isinstance(parameters, Mapping) else parameters
        parameters = WholeSums(values, ranks)
    parameters.reduce_sums(BLOCK, add_noise_to_pieces)
    if meter is not None:
        meter.sum_over_ranks(ranks)


class IndependentNoise:
    """Noise of steps that know nothing of each other: DP-SGD's."""

    def __init__(self, stream: NoiseStream) -> None:
        """Draw from ``stream``."""
        self._stream = stream

    def add(
        self,
        sums: Mapping[str, nn.Parameter] | Iterable[nn.Parameter] | StepSums,
        noise_std: float,
        *,
        step: int,
        meter: SignalMeter | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """As ``add_noise``."""
        add_noise(sums, noise_std, self._stream, step, meter=meter, ranks=ranks)

    def history(self) -> dict[str, Tensor]:
        """Return nothing: no step's noise depends on another's."""
        return {}


class WholeSums:
    """The sums in ``grad`` of parameters that each rank holds whole."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        """Take all the model's parameters, in the model's order."""
        self._parameters, self._ranks = parameters, ranks

    def reduce_sums(self, block: int, finish: FinishPieces) -> None:
        """Give every rank every finished sum, the same bits; as ``StepSums``."""
        with _flat_gradients(self._parameters) as flat:
            pieces = [
                (piece, gradient[start:end])
                for place, gradient in flat
                for start, end, piece in pieces_between(
                    place, 0, len(gradient), total=len(gradient), block=block
                )
            ]
            finish_sums(
                [stretch for _, stretch in pieces],
                lambda parts: finish([(pieces[at][0], total) for at, total in parts]),
                self._ranks,
            )


def grid(noise_std: float) -> float:
    """Return the spacing of the grid: the power of two in (2^-21, 2^-20] of ``noise_std``.

    >>> grid(1.0) == grid(1.99) == 2**-20, grid(0.99) == 2**-21
    (True, True)

    Raises:
        ValueError: ``noise_std`` is not positive and finite.
    """
    if not (noise_std > 0 and math.isfinite(noise_std)):
        raise ValueError(f"noise_std must be positive and finite, got {noise_std}.")
    return float(2.0 ** (math.frexp(noise_std)[1] - 1 - 20))


def _add(waiting: Iterable[tuple[Tensor, Tensor]], noise_std: float, spacing: float) -> None:
    """Add to each sum its Gaussians times ``noise_std``, and round; the Gaussians are used up."""
    for target, gaussians in waiting:
        target.copy_(_on_grid(gaussians.mul_(noise_std).add_(target.to(gaussians.device)), spacing))


def _add_at_once(
    waiting: Sequence[tuple[Tensor, Tensor]], noise_std: float, spacing: float
) -> None:
    """Do the same as ``_add``, bit for bit, in as many operations as for one sum."""
    sums, gaussians = [target for target, _ in waiting], [half for _, half in waiting]
    noisy = torch.cat(gaussians).mul_(noise_std).add_(torch.cat(sums))
    lengths = [len(target) for target in sums]
    torch._foreach_copy_(sums, _on_grid(noisy, spacing).split(lengths))


def _on_grid(values: Tensor, spacing: float) -> Tensor:
    """Round to multiples of a power of two, in place; scaling by it is exact.

    A zero has no sign: -0.0 would tell on which side of zero the sum lay.
    """
    return values.mul_(1 / spacing).round_().mul_(spacing).add_(0.0)


@contextmanager
def _flat_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[list[tuple[int, Tensor]]]:
    """Give the flattened gradient of each that trains, to be written to, and its place."""
    flat, copies = [], []
    for place, parameter in enumerate(parameters):
        if not parameter.requires_grad or not parameter.numel():
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_contiguous():
            flat.append((place, parameter.grad.view(-1)))
        else:
            flat.append((place, parameter.grad.reshape(-1)))
            copies.append((parameter.grad, flat[-1][1]))
    yield flat
    for gradient, copy in copies:
        gradient.copy_(copy.view_as(gradient))


def _overlaps(
    total: Tensor, offset: int, halves: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield what of a block's stretch each half covers, what covers it, and its place there."""
    start = 0
    for half in halves:
        first, last = max(start, offset), min(start + len(half), offset + len(total))
        if first < last:
            yield total[first - offset : last - offset], half[first - start : last - start], first
        start += len(half)


class CorrelatedNoise:
    """The noise of one stream's steps, and what it must remember of them.

    Guarantees:
        With x the noise over ``noise_std``, ``c_0 x_t + ... + c_(b-1) x_(t-b+1)`` are independent
        standard Gaussians, those of ``NoiseStream``, over all steps since the stream began. Numbers
        that got no noise in a step begin anew: their earlier noise is no longer that of the steps
        just before, and hanging on to it would count two steps as nearer than they are.
    """

    def __init__(
        self, stream: NoiseStream, coefficients: Sequence[float], history: Mapping[str, Tensor]
    ) -> None:
        """Begins a stream, or goes on with one.

        Args:
            stream: Where fresh Gaussians come from.
            coefficients: c_0 to c_(b-1).
            history: As ``history`` returned it; empty: a stream begins.
        """
        self._stream = stream
        self._first, *self._others = coefficients
        self._earlier = {
            name: deque(rows.to(stream.device, copy=True).unbind(), maxlen=len(self._others))
            for name, rows in history.items()
        }
        """Of each stretch the vectors x of the steps before, the last one first."""
        self._met: set[str] = set()

    def add(
        self,
        sums: Mapping[str, nn.Parameter] | Iterable[nn.Parameter] | StepSums,
        noise_std: float,
        *,
        step: int,
        meter: SignalMeter | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """As ``add_noise``, of noise that hangs together; once for each step, in their order."""
        self._met.clear()
        add_noise(
            sums, noise_std, self._stream, step, meter=meter, ranks=ranks, correlate=self._correlate
        )
        self._earlier = {name: kept for name, kept in self._earlier.items() if name in self._met}

    def history(self) -> dict[str, Tensor]:
        """Return each stretch's vectors x, float64, shape (steps, numbers), the last one first."""
        return {
            name: torch.stack(tuple(kept)).cpu() for name, kept in self._earlier.items() if kept
        }

    def _correlate(self, piece: Piece, first: int, fresh: Tensor) -> Tensor:
        """Turn fresh Gaussians of a stretch into x, in place, and remembers it."""
        name = f"{piece.place}.{piece.block}.{first}.{len(fresh)}"
        most = len(self._others)
        self._met.add(name)
        earlier = self._earlier.setdefault(name, deque(maxlen=most))
        for coefficient, x in zip(self._others, earlier, strict=False):
            # two roundings, never a fused one, which would depend on a number's place
            fresh.sub_(x * coefficient)
        fresh.div_(self._first)
        if most:
            oldest = earlier.pop() if len(earlier) == most else fresh.new_empty(len(fresh))
            earlier.appendleft(oldest.copy_(fresh))
        return fresh
