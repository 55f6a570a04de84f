"""The loss scale of fp16, which adapts to the noisy gradient only.

Ordinary mixed precision halves its scale where a gradient overflowed. With privacy that would tell
of the records: one of them can make an overflow, and whoever sees the scale sees the overflow. Here
nothing of the records comes to the scale but through noisy gradients, which epsilon covers: the
scale of the next step is post-processing of the steps before it (docs/dev/design.md, rule 10).
Whatever it is, a gradient is clipped at the same norm and gets the same noise (Li et al. 2022,
Appendix T: K times the loss, K times the norm, K times the noise, divided by K), and an example
that overflows contributes zero.

What a noisy gradient says: with s the clipped sum, d its numbers and t the noise's standard
deviation, its square has mean ``|s|^2 + d t^2`` and variance ``2 d t^4 + 4 t^2 |s|^2``. The mean
over some steps, less ``d t^2``, estimates ``|s|^2``. A scale at which examples overflow, or their
gradients vanish, makes the sum shorter. After some steps at one scale another is tried for as many.
It stays if the sum is then surely longer, by more than noise explains, and at least twice as long
in squares: that much is gained where three examples of ten were lost. Where noise hides the sum
nothing is sure, and the configured scale stands but for the trials, which get rarer.

>>> class Nowhere:
...     def record_step(self, mechanism, gradients):
...         '''Records nothing.'''
>>> scale = AdaptiveLossScale(Nowhere(), start=2.0**20)
>>> generator = torch.Generator().manual_seed(0)
>>> noise = GaussianStep(name="x", noise_multiplier=0.5, sample_rate=0.1, sensitivity=1.0)
>>> for step in range(40):
...     longer = 10.0 if scale() <= 2**16 else 0.0  # above it every example overflows
...     scale.record_step(noise, [torch.randn(100, generator=generator) / 2 + longer])
>>> scale() == 2**16
True
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dpft.privacy.clipping.options import LOSS_SCALES, LossScale
from dpft.privacy.ledger import Released, StepLog
from dpft.privacy.mechanisms.base import GaussianStep
from dpft.training.training_config import TrainingConfig

WINDOW = 10
"""Steps at a scale before it is judged."""
TRIALS = (2.0**-4, 2.0**4, 2.0**-8, 2.0**8, 2.0**-12, 2.0**12)
"""What the scale is multiplied by on trial, in turn; powers of two, which change no other bit."""
SURE = 3.0
"""Standard deviations by which a trial must be better."""
GAIN = 2.0
"""How much longer the sum must be on trial, in squares."""

logger = logging.getLogger(__name__)


@dataclass
class ScaleState:
    """Where an adaptive scale stands; it follows from noisy gradients alone."""

    scale: float
    """The one that stands."""
    tried: float | None = None
    """The one on trial; None: there is none."""
    failed: int = 0
    """Trials since the scale last moved."""
    waited: int = 0
    """Windows since the last trial."""
    signal: float = 0.0
    """Squared length of the clipped sum at the scale that stands, over its last window."""
    variance: float = 0.0
    """Of that estimate."""
    steps: int = 0
    """Of the window so far."""
    squares: float = 0.0
    """Of its noisy gradients, added up."""
    noise: tuple[int, float] = (0, 0.0)
    """Numbers of the gradient and standard deviation of its noise; another phase has others."""


class AdaptiveLossScale:
    """The loss scale of the next step, and the log that tells it of each noisy one.

    Guarantees:
        The scale is a function of the configuration and of the noisy gradients recorded so far. A
        step's own is fixed before the step draws its records.
    """

    def __init__(
        self, log: StepLog, *, start: float, state: Mapping[str, Any] | None = None
    ) -> None:
        """Start at a scale, or goes on from what ``state`` returned.

        The log is told of a step first, so that one that it refuses moves nothing.
        """
        self._log, self._start = log, start
        self._now = ScaleState(scale=start)
        if state is not None:
            self._now = ScaleState(**state)
            numbers, std = self._now.noise
            self._now.noise = numbers, std

    def __call__(self) -> float:
        """Return the scale of the next step."""
        return self._now.scale if self._now.tried is None else self._now.tried

    def state(self) -> dict[str, Any]:
        """Return where it stands, ready for JSON, for the checkpoint of the last step recorded."""
        return asdict(self._now) | {"noise": list(self._now.noise)}

    def say_where_it_stands(self) -> None:
        """Log that it has moved; for the time after the last step.

        Its windows are not on the grid of ``StepWindows``: a line when it moves would tell how long
        fewer than ten steps took (docs/dev/design.md, rule 7).
        """
        if self._now.scale != self._start:
            logger.info(
                "train.loss_scale: %g -> %g (the noisy gradients contained fewer examples)",
                *(self._start, self._now.scale),
            )

    def begin(self) -> None:
        """Begin the log."""
        self._log.begin()

    def record_step(self, mechanism: GaussianStep, gradients: Released) -> None:
        """Record a step, and then takes its noisy sum into account.

        Raises:
            TypeError: The gradients are shards of other processes too, of which this has no sum.
        """
        self._log.record_step(mechanism, gradients)
        if isinstance(gradients, Mapping):
            raise TypeError("an adaptive loss scale needs the whole noisy gradient, got shards.")
        now = self._now
        noise_std = mechanism.noise_multiplier * mechanism.sensitivity
        noise = sum(gradient.numel() for gradient in gradients), noise_std
        if noise != now.noise:  # a phase begins, whose gradients are of other parameters
            now = self._now = ScaleState(scale=now.scale, noise=noise)
        for gradient in gradients:
            length = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64)
            now.squares += float(length.square())
        now.steps += 1
        if now.steps == WINDOW:
            self._judge(now)

    def _judge(self, now: ScaleState) -> None:
        """End a window: keeps a trial or give it up, and begins the next one where it is due."""
        numbers, std = now.noise
        signal = now.squares / WINDOW - numbers * std**2
        variance = (2 * numbers * std**4 + 4 * std**2 * max(signal, 0.0)) / WINDOW
        now.steps, now.squares = 0, 0.0
        if now.tried is None:
            now.signal, now.variance, now.waited = signal, variance, now.waited + 1
            # After one window, one, two, two, four, four: n windows have some 2 log2(n) trials.
            if now.waited >= 2 ** (now.failed // 2):
                now.tried = self._next_trial(now)
            return
        sure = signal - now.signal > SURE * math.sqrt(variance + now.variance)
        if sure and signal >= GAIN * now.signal:
            now.scale, now.signal, now.variance, now.failed = now.tried, signal, variance, 0
        else:
            now.failed += 1
        now.tried, now.waited = None, 0

    def _next_trial(self, now: ScaleState) -> float | None:
        """Return the scale to try, within what is allowed; None where it would be the same."""
        least, most = LOSS_SCALES
        tried = min(max(now.scale * TRIALS[now.failed % len(TRIALS)], least), most)
        if tried != now.scale:
            return tried
        now.failed, now.waited = now.failed + 1, 0
        return None


def scaled(
    settings: TrainingConfig, log: StepLog, state: Mapping[str, Any] | None
) -> tuple[StepLog, LossScale]:
    """Return where a run records its steps, and what its losses are multiplied by.

    ``state`` is where a scale that adapts stood, as a checkpoint says; None: it starts.
    """
    if not settings.adaptive_loss_scale:
        return log, settings.backward_scale
    scale = AdaptiveLossScale(log, start=settings.loss_scale, state=state)
    return scale, scale
