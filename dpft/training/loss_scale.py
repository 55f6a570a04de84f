"""The loss scale of fp16, which adapts only to the noisy gradient.

Ordinary mixed precision halves its scale after a gradient overflows. With privacy this would leak
information: one record can cause an overflow, and the scale would reveal it. Here the scale depends
on the records only through noisy gradients, which epsilon covers. The scale of the next step is
post-processing of the previous steps (docs/dev/design.md, rule 10). For every scale, a gradient is
clipped at the same norm and gets the same noise. Multiplying the loss, the norm and the noise by K
and dividing by K changes nothing (Li et al. 2022, Appendix T). An example that overflows
contributes zero.

Information in a noisy gradient: let s be the clipped sum, d its number of elements and t the
standard deviation of the noise. The squared norm of the noisy sum has mean ``|s|^2 + d t^2`` and
variance ``2 d t^4 + 4 t^2 |s|^2``. The mean over several steps, minus ``d t^2``, estimates
``|s|^2``. The sum is shorter if examples overflow at the current scale, or if their gradients
vanish. After some steps at one scale, another scale is tried for the same number of steps. The
trial is kept if the sum is longer by more than the noise explains, and its squared norm at least
doubles. Such a gain occurs if three examples of ten were lost. If noise hides the sum, no trial is
kept. The configured scale then remains except during trials, which become less frequent.

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
"""Number of steps at one scale before the scale is evaluated."""
TRIALS = (2.0**-4, 2.0**4, 2.0**-8, 2.0**8, 2.0**-12, 2.0**12)
"""Factors for the scale in successive trials; powers of two, which change only the
exponent bits."""
SURE = 3.0
"""Number of standard deviations by which a trial must be better."""
GAIN = 2.0
"""Factor by which the squared norm of the sum must grow in a trial."""

logger = logging.getLogger(__name__)


@dataclass
class ScaleState:
    """State of an adaptive scale, which depends only on noisy gradients."""

    scale: float
    """The current scale, outside trials."""
    tried: float | None = None
    """The scale on trial; None between trials."""
    failed: int = 0
    """Number of trials since the scale last changed."""
    waited: int = 0
    """Number of windows since the last trial."""
    signal: float = 0.0
    """Estimated squared norm of the clipped sum in the last window at the current scale."""
    variance: float = 0.0
    """Variance of ``signal``."""
    steps: int = 0
    """Number of steps in the current window so far."""
    squares: float = 0.0
    """Sum of the squared norms of the noisy gradients in the current window."""
    noise: tuple[int, float] = (0, 0.0)
    """Number of elements of the gradient and standard deviation of its noise; both may change with
    the phase."""


class AdaptiveLossScale:
    """Step log that also adapts the loss scale to the noisy gradients that it records.

    Guarantees:
        The scale is a function of the configuration and of the noisy gradients recorded so far. The
        scale of a step is fixed before the step draws its records.
    """

    def __init__(
        self, log: StepLog, *, start: float, state: Mapping[str, Any] | None = None
    ) -> None:
        """Start at the scale ``start``, or continue from a state that ``state()`` returned.

        Every step is first recorded in ``log``. If ``log`` rejects the step, the scale does not
        change.
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
        """Return the state after the last recorded step, as values for JSON, for a checkpoint."""
        return asdict(self._now) | {"noise": list(self._now.noise)}

    def say_where_it_stands(self) -> None:
        """Log the change of the scale; call this method only after the last step.

        The windows of the scale are not on the grid of ``StepWindows``. A log line at each change
        would reveal the duration of fewer than ten steps (docs/dev/design.md, rule 7).
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
        """Record a step and update the scale with its noisy sum.

        Raises:
            TypeError: The gradients are shards of several processes, so the whole sum is not
                available.
        """
        self._log.record_step(mechanism, gradients)
        if isinstance(gradients, Mapping):
            raise TypeError("an adaptive loss scale needs the whole noisy gradient, got shards.")
        now = self._now
        noise_std = mechanism.noise_multiplier * mechanism.sensitivity
        noise = sum(gradient.numel() for gradient in gradients), noise_std
        if noise != now.noise:  # A new phase begins, which trains other parameters.
            now = self._now = ScaleState(scale=now.scale, noise=noise)
        for gradient in gradients:
            length = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64)
            now.squares += float(length.square())
        now.steps += 1
        if now.steps == WINDOW:
            self._judge(now)

    def _judge(self, now: ScaleState) -> None:
        """End a window: keep or reject the trial, or begin the next trial if one is due."""
        numbers, std = now.noise
        signal = now.squares / WINDOW - numbers * std**2
        variance = (2 * numbers * std**4 + 4 * std**2 * max(signal, 0.0)) / WINDOW
        now.steps, now.squares = 0, 0.0
        if now.tried is None:
            now.signal, now.variance, now.waited = signal, variance, now.waited + 1
            # Waits of 1, 1, 2, 2, 4, 4, ... windows, so that n windows contain about 2 log2(n)
            # trials.
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
        """Return the scale to try, within the allowed range; None if equal to the current one."""
        least, most = LOSS_SCALES
        tried = min(max(now.scale * TRIALS[now.failed % len(TRIALS)], least), most)
        if tried != now.scale:
            return tried
        now.failed, now.waited = now.failed + 1, 0
        return None


def scaled(
    settings: TrainingConfig, log: StepLog, state: Mapping[str, Any] | None
) -> tuple[StepLog, LossScale]:
    """Return the log of the run's steps, and the factor for its losses.

    ``state`` is the state of an adaptive scale from a checkpoint; None if there is no such state.
    """
    if not settings.adaptive_loss_scale:
        return log, settings.backward_scale
    scale = AdaptiveLossScale(log, start=settings.loss_scale, state=state)
    return scale, scale
