"""Gaussian noise of a step, with the same bits on every device.

The noise of each parameter is drawn in blocks of ``BLOCK`` numbers of the whole, flattened
parameter. The noise of a block depends only on the key of the step, the step, the place of the
parameter and the number of the block. Any number of processes can therefore draw the blocks in any
order.

Noise is drawn and added in float64. The sum is then rounded once to a fixed grid, before any other
operation. The spacing of the grid is a power of two between 2^-21 and 2^-20 of the noise's standard
deviation. Without the grid, floating point would reveal the sum (Mironov 2012): a float32 result
within 2^-30 standard deviations of zero reveals the float64 noise itself. A result far in the tails
reveals it too, because few radii are possible there. On the grid, very many noise values lead to a
given result, both for the sum and for the sum of a neighboring data set. This holds as far as the
tails extend.

A small part of Mironov's attack remains. The noise is one of finitely many float64 numbers, so the
probability of an outcome is not exactly that of the Gaussian. A cell of the grid contains all noise
values in an interval of 2^-21 standard deviations. For one angle, radii around r come from uniforms
u that are spaced by 2^-53, or by 2^-32 u if that is less (``gaussians``). Radii are therefore
spaced by at most 2^-32 / r, and a cell contains at least 2^11 r of them. The probability of a cell
is off by a ratio of at most 1 + 2^-11 / r. The worst case is u near 2^-21 and r near 5.4. At r = 3
the ratio is 1 + 2^-27, and at r = 1 it is less than 1 + 2^-30. Below r = 2^-21 there are only 512
radii, and a run sees one of these with a probability of 2^-43 per pair. All of this holds for one
angle. About 2^29 / r angles share a cell and average out. The rounding of logarithm, root and
cosine (2^-50, relative) moves noise values across cell edges by as little. The guarantee does not
rely on noise beyond 18.8 standard deviations: see ``plan_building``.

``CorrelatedNoise`` correlates the noise of b steps by the recursion of ``mechanisms.banded``. For
each segment of a block, the rank that adds the noise keeps the last b - 1 vectors x in float64. The
recursion uses these vectors and never rounded sums: the released sum is rounded once, like
independent noise, and rounding a released sum is post-processing. Each number is computed by the
same operations in the same order on any rank, so it has the same bits for any number of ranks.

``SignalMeter`` measures the norms of a step's signal and noise, block by block before they are
added. Afterwards the noise is known only up to rounding. Li et al. 2022 (arXiv 2110.05679), section
3.1.1 and Figure 3, right: let g be the mean of the clipped gradients and z the noise on it. The
average of ``r = ||g|| / ||z||`` over the first updates correlates with the final score. The meter
reads the records, and epsilon does not cover it. Its results are only for the run's private/
folder.
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
"""Number of first updates over which the ratio is averaged (Li et al. 2022, section 3.1.1)."""


@dataclass(frozen=True, kw_only=True)
class SignalAndNoise:
    """Norms of a step's mean clipped gradient and of the noise on it. Private."""

    signal: float
    """Norm of the clipped sum divided by the expected batch size; 0 for an empty batch."""
    noise: float
    """Norm of the noise divided by the expected batch size; above 0."""

    @property
    def ratio(self) -> float:
        """Signal-to-noise ratio."""
        return self.signal / self.noise


class SignalMeter:
    """Sums of squares of a step's clipped sum and of its noise, in float64.

    The noise is measured in units of its standard deviation, so that no standard deviation makes
    the squares overflow or vanish.
    """

    def __init__(self, device: torch.device) -> None:
        """Start at zero, on the device of the tensors to measure."""
        self._signal = torch.zeros((), dtype=torch.float64, device=device)
        self._noise = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, clipped_sum: Tensor, gaussians: Tensor) -> None:
        """Add the squares of a block, using memory for one block and changing neither tensor.

        Args:
            clipped_sum: The block of the sum before its noise, any dtype.
            gaussians: The noise of the block divided by ``noise_std``, float64, of the same shape.
        """
        self._signal += vector_norm(clipped_sum, dtype=torch.float64).square()
        self._noise += vector_norm(gaussians).square()

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Add the measurements of the other ranks."""
        both = ranks.total(torch.stack((self._signal, self._noise)))
        self._signal, self._noise = both[0], both[1]

    def mean(self, noise_std: float, expected_batch_size: float) -> SignalAndNoise:
        """Return the norms of signal and noise in the mean gradient.

        Args:
            noise_std: Standard deviation of the noise on the sum.
            expected_batch_size: Divisor of the noisy sum.
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
"""Number of elements of a parameter whose noise has the same keystream address; an even number."""
Correlate = Callable[[Piece, int, Tensor], Tensor]
"""Function that turns fresh Gaussians into a step's noise, in place. Its arguments are the piece,
the position of the first of these Gaussians in the block of the piece, and the Gaussians."""


class NoiseStream:
    """Secret source of a run's noise: a key that changes with each step, and a device."""

    def __init__(self, device: torch.device, key: AgingKey) -> None:
        """Draw on ``device`` from ``key``, which changes with each step."""
        self.device, self.key = device, key


class BlockNoise:
    """The blocks of one step's noise, in memory that is reused."""

    def __init__(self, stream: NoiseStream, step: int) -> None:
        """Draw from the stream's key of ``step``, which must not be forgotten."""
        self._step, self._key = step, stream.key.at(step)
        self._device = stream.device
        self.draws_at_once = stream.device.type != "cpu"
        """Whether blocks are drawn together, instead of one after the other in the same memory."""
        self._box_muller = BoxMuller(stream.device)
        self._zeros, self._bits = b"", bytearray()

    def halves(self, blocks: Sequence[Piece]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the first and the second half of each block's numbers.

        On a CPU, blocks are drawn one by one in memory that is reused. On an accelerator, all
        blocks are drawn at once, in as many operations as one block, and remain in memory until the
        next call.

        Args:
            blocks: The parameter, the number and the length of each block, which has at most
                ``BLOCK`` numbers. A block must have the same length at every draw. If this length
                is odd, one number more is drawn, at the end.
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
        """Return the words that extend the uniforms of a block that are close to 0."""
        address = Address(Purpose.REFINEMENT, self._step, piece.place, piece.block)
        return keystream(self._key, address, WORD_BYTES * words)

    def _words(self, parameter: int, block: int, count: int) -> Tensor:
        """Return words of 64 secret bits on the CPU, int64, shape (count,)."""
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
        parameters: All parameters of the model in the model's order, or by name. The place of a
            parameter is part of the address of its noise, so the trainable parameters may change
            between steps. A parameter that does not require grad is not changed. A parameter
            without a ``grad`` gets only noise. Alternatively, a ``StepSums`` that holds the sums
            elsewhere: for a sharded model, each rank finishes its own shard.
        noise_std: noise_multiplier times the sensitivity of the sum.
        noise: Source of the noise.
        step: Step of the run, counted from 0, different in each call of a run. The same step gives
            the same noise.
        meter: Measures each block before its noise is added, without changing sum or noise. None:
            nothing is measured.
        ranks: Ranks whose gradients are added up first. One rank adds the noise to each block of
            the sum and sends the result to all ranks.
        correlate: Turns fresh Gaussians into the noise of the step, with a standard deviation of at
            least 1. None: the fresh Gaussians are the noise of the step.

    Guarantees:
        Coordinates get independent draws, which are added in float64 for every dtype of the
        gradient. Each noisy coordinate is rounded once to a multiple of ``grid(noise_std)`` and
        then cast. For float32, the cast is exact up to 8 standard deviations, and rounds to a fixed
        coarser grid beyond. For any number of ranks, a coordinate gets the same draw exactly once.

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
            if not blocks.draws_at_once:  # the next block reuses this memory
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
    """Noise that is independent in each step, as DP-SGD requires."""

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
        """Add the noise of a step; see ``add_noise``."""
        add_noise(sums, noise_std, self._stream, step, meter=meter, ranks=ranks)

    def history(self) -> dict[str, Tensor]:
        """Return an empty history, because the noise of different steps is independent."""
        return {}


class WholeSums:
    """Sums in the ``grad`` of parameters that each rank holds completely."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        """Take all parameters of the model, in the model's order."""
        self._parameters, self._ranks = parameters, ranks

    def reduce_sums(self, block: int, finish: FinishPieces) -> None:
        """Give every rank the same bits of every finished sum; see ``StepSums``."""
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
    """Add Gaussians times ``noise_std`` to each sum and round it; overwrite the Gaussians."""
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
    """Round to multiples of a power of two, in place; scaling by a power of two is exact.

    Adding 0.0 removes the sign of zeros, because -0.0 would reveal that the sum was below zero.
    """
    return values.mul_(1 / spacing).round_().mul_(spacing).add_(0.0)


@contextmanager
def _flat_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[list[tuple[int, Tensor]]]:
    """Yield the place and the flattened, writable gradient of each trainable parameter."""
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
    """Yield the part of a segment's sum that overlaps each half, its noise, and its position.

    ``offset`` and the yielded position are those in the block that the halves form.
    """
    start = 0
    for half in halves:
        first, last = max(start, offset), min(start + len(half), offset + len(total))
        if first < last:
            yield total[first - offset : last - offset], half[first - start : last - start], first
        start += len(half)


class CorrelatedNoise:
    """Correlated noise of one stream's steps, with the history that it needs.

    Guarantees:
        Let x be the noise divided by ``noise_std``. Then ``c_0 x_t + ... + c_(b-1) x_(t-b+1)`` are
        the independent standard Gaussians of ``NoiseStream``, over all steps since the stream
        began. Parameters that got no noise in a step begin a new history. Their earlier noise is no
        longer that of the steps directly before, and using it would treat two steps as closer than
        they are.
    """

    def __init__(
        self, stream: NoiseStream, coefficients: Sequence[float], history: Mapping[str, Tensor]
    ) -> None:
        """Begin or continue a stream.

        Args:
            stream: Source of fresh Gaussians.
            coefficients: c_0 to c_(b-1).
            history: Value that ``history`` returned; empty: a new stream.
        """
        self._stream = stream
        self._first, *self._others = coefficients
        self._earlier = {
            name: deque(rows.to(stream.device, copy=True).unbind(), maxlen=len(self._others))
            for name, rows in history.items()
        }
        """For each segment, the vectors x of the previous steps, the latest first."""
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
        """Add correlated noise; see ``add_noise``. Call once for each step, in their order."""
        self._met.clear()
        add_noise(
            sums, noise_std, self._stream, step, meter=meter, ranks=ranks, correlate=self._correlate
        )
        self._earlier = {name: kept for name, kept in self._earlier.items() if name in self._met}

    def history(self) -> dict[str, Tensor]:
        """Return each segment's vectors x, float64, shape (steps, numbers), the latest first."""
        return {
            name: torch.stack(tuple(kept)).cpu() for name, kept in self._earlier.items() if kept
        }

    def _correlate(self, piece: Piece, first: int, fresh: Tensor) -> Tensor:
        """Turn the fresh Gaussians of a segment into x, in place, and store x in the history."""
        name = f"{piece.place}.{piece.block}.{first}.{len(fresh)}"
        most = len(self._others)
        self._met.add(name)
        earlier = self._earlier.setdefault(name, deque(maxlen=most))
        for coefficient, x in zip(self._others, earlier, strict=False):
            # Two roundings: whether a fused multiply-add is used could depend on the position.
            fresh.sub_(x * coefficient)
        fresh.div_(self._first)
        if most:
            oldest = earlier.pop() if len(earlier) == most else fresh.new_empty(len(fresh))
            earlier.appendleft(oldest.copy_(fresh))
        return fresh
