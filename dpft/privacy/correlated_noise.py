"""Noise of which b steps hang together, by the recursion of ``mechanisms.banded``.

Each stretch of a block keeps its last b - 1 vectors x in float64, on the rank that adds its noise.
The recursion is of these, and never of rounded sums: what is released is rounded once, as
independent noise is, and rounding a released sum is post-processing. Each number is computed by the
same operations in the same order wherever it lies, so that it has the same bits at any number of
ranks.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.reductions import Piece, StepSums
from dpft.privacy.noise import NoiseStream, add_noise
from dpft.privacy.signal_to_noise import SignalMeter


class CorrelatedNoise:
    """The noise of one stream's steps, and what it must remember of them.

    Guarantees:
        With x the noise over ``noise_std``, ``c_0 x_t + ... + c_(b-1) x_(t-b+1)`` are independent
        standard Gaussians, those of ``NoiseStream``, over all steps since the stream began.
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
        add_noise(
            sums, noise_std, self._stream, step, meter=meter, ranks=ranks, correlate=self._correlate
        )

    def history(self) -> dict[str, Tensor]:
        """Returns each stretch's vectors x, float64, shape (steps, numbers), the last one first."""
        from torch import stack

        return {name: stack(tuple(kept)).cpu() for name, kept in self._earlier.items() if kept}

    def _correlate(self, piece: Piece, first: int, fresh: Tensor) -> Tensor:
        """Turns fresh Gaussians of a stretch into x, in place, and remembers it."""
        name = f"{piece.place}.{piece.block}.{first}.{len(fresh)}"
        most = len(self._others)
        earlier = self._earlier.setdefault(name, deque(maxlen=most))
        for coefficient, x in zip(self._others, earlier, strict=False):
            # two roundings, never a fused one, which would depend on a number's place
            fresh.sub_(x * coefficient)
        fresh.div_(self._first)
        if most:
            oldest = earlier.pop() if len(earlier) == most else fresh.new_empty(len(fresh))
            earlier.appendleft(oldest.copy_(fresh))
        return fresh
