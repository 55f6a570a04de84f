"""Build the plan of a private run, or of one that only clips, from its configuration."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from dpft.constants import OWN_DATA, DeltaRule
from dpft.errors import InputError
from dpft.privacy.accounting.calibration import Calibration, calibrate_noise_multiplier
from dpft.privacy.clipping.styles import MOST_HEADROOM, clipping_style
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.gaussians import REACH
from dpft.privacy.mechanisms.base import MechanismConfig, Numbers
from dpft.privacy.mechanisms.dp_sgd import DPSGDConfig
from dpft.privacy.plan import (
    EXAMPLE,
    GIVEN,
    ClippingPlan,
    Phase,
    PrivacyPlan,
    SpentBefore,
    check_delta,
    default_delta,
)
from dpft.privacy.privacy_config import Clipping, DifferentialPrivacy

DP_SGD = DPSGDConfig()


class PhaseRequest(Protocol):
    """A stretch of steps as a fine-tuning method asks for it."""

    @property
    def method(self) -> str:
        """Name of what trains in it."""

    @property
    def steps(self) -> int:
        """Noisy steps in it, at least 1."""

    @property
    def max_grad_norm(self) -> float | None:
        """Its clipping norm; None takes the configuration's."""


def make_clipping_plan(
    config: Clipping, *, num_examples: int, expected_batch_size: int, phases: Sequence[PhaseRequest]
) -> ClippingPlan:
    """Return the plan of a run that clips and add no noise; as ``make_plan``, without epsilon.

    Raises:
        InputError: The batch is too large for sums of its gradients.
    """
    _check_headroom(expected_batch_size)
    return ClippingPlan(
        sample_rate=expected_batch_size / num_examples,
        steps=sum(phase.steps for phase in phases),
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        clipping=config.clipping,
        phases=tuple(_planned(config, phase) for phase in phases),
    )


def make_plan(
    config: DifferentialPrivacy,
    *,
    num_examples: int,
    expected_batch_size: int,
    phases: Sequence[PhaseRequest],
    record: str = EXAMPLE,
    delta_rule: DeltaRule = OWN_DATA,
    tokenizer: SpentBefore | None = None,
    mechanism: MechanismConfig = DP_SGD,
    weights: Callable[[], Sequence[float]] | None = None,
) -> PrivacyPlan:
    """Return the plan of a run; read no record.

    Args:
        config: What is promised, and how gradients are clipped.
        num_examples: The public number of units.
        expected_batch_size: Divisor of every gradient; over num_examples, the sample rate.
        phases: The stretches of the run, in order; all share one noise multiplier and one sample
            rate, so that they cost what one run of their steps does.
        record: What a record of the task is, in words that follow "one".
        delta_rule: Of ``default_delta``; which delta a configuration without one stands for.
        tokenizer: What the same records spent on the run's tokenizer, which adds to its cost.
        mechanism: How draws and noise of steps hang together.
        weights: How much of each step's gradient is in the last weights, by schedule and momentum.

    Raises:
        InputError: The mechanism does not fit, delta is too large, no noise multiplier reaches
            eps, or the noise is so small that its tails would have to go on where those of float64
            numbers end.
    """
    delta, source = config.delta, GIVEN
    if delta is None:
        delta, source = default_delta(num_examples, delta_rule), delta_rule
    check_delta(delta, num_examples=num_examples, allow_large=config.allow_large_delta)
    steps = sum(phase.steps for phase in phases)
    chosen = mechanism.choose(
        Numbers(
            num_examples=num_examples,
            expected_batch_size=expected_batch_size,
            steps=steps,
            delta=delta,
            eps=config.eps,
            weights=weights,
        )
    )
    if chosen.has_streams and len(phases) > 1:
        raise InputError(
            f"mechanism={chosen.name} needs a method with one phase, got"
            f" {' and '.join(phase.method for phase in phases)}. The trainable parameters would"
            " change between steps with correlated noise.",
            key="mechanism",
            value=chosen.name,
            hint="mechanism=dp_sgd",
        )
    sample_rate = chosen.rate(expected_batch_size / num_examples)
    compositions = chosen.compositions((steps,))
    noise_multiplier, calibration = _noise(
        config, delta=delta, sample_rate=sample_rate, steps=compositions
    )
    _check_headroom(expected_batch_size)
    _check_reach(noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta)
    return PrivacyPlan(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        clipping=config.clipping,
        phases=tuple(_planned(config, phase) for phase in phases),
        unit=config.unit,
        unit_definition=config.unit_definition(record),
        calibration=calibration,
        delta_source=source,
        mechanism=chosen,
        sampler=chosen.sampler_name,
        accountant=config.accountant,
        reproducible=config.noise_seed is not None,
        data_id=config.data_id,
        tokenizer=tokenizer,
    )


def _check_headroom(expected_batch_size: int) -> None:
    """Reject a batch so large that rounding could move its sum by half of the clipping norm."""
    headroom = rounding_headroom(expected_batch_size)
    if headroom > MOST_HEADROOM:
        raise InputError(
            f"train.expected_batch_size={expected_batch_size} is too large: rounding in float32"
            f" could move the sum of its gradients by {headroom:.0%} of privacy.max_grad_norm.",
            key="train.expected_batch_size",
            value=expected_batch_size,
            hint="train.expected_batch_size=200000",
        )


def _check_reach(noise_multiplier: float, *, sample_rate: float, steps: int, delta: float) -> None:
    """Reject noise so small that its missing tails could take part of delta.

    Noise ends at ``REACH`` standard deviations. A unit that joins a step moves the sum by at most
    ``1 / noise_multiplier`` of them, so an outcome that only one of two data sets can have is seen
    in a run with a probability of at most ``q * T * Phi(1 / noise_multiplier - REACH)``.
    """
    beyond = 1 / noise_multiplier - REACH
    missing = sample_rate * steps * math.erfc(-beyond / math.sqrt(2)) / 2
    if missing > delta / 1000:
        raise InputError(
            f"privacy.noise_multiplier={noise_multiplier:.3g} is too small: the missing tails of"
            f" float64 noise could use {missing:.1g} of delta = {delta:.3g}. Lower privacy.eps or"
            " raise privacy.noise_multiplier.",
            key="privacy.noise_multiplier",
            value=noise_multiplier,
        )


def _planned(config: Clipping, phase: PhaseRequest) -> Phase:
    """Return a phase with its clipping norm and the sensitivity that follows from it."""
    phase_norm = phase.max_grad_norm
    max_grad_norm = config.clipping_norm if phase_norm is None else phase_norm
    style = clipping_style(config.clipping, max_grad_norm=max_grad_norm)
    return Phase(
        method=phase.method,
        steps=phase.steps,
        max_grad_norm=max_grad_norm,
        sensitivity=style.sensitivity,
    )


def _noise(
    config: DifferentialPrivacy, *, delta: float, sample_rate: float, steps: int
) -> tuple[float, Calibration | None]:
    """Return the noise multiplier, and what chose it where eps was given."""
    if config.noise_multiplier is not None:
        return config.noise_multiplier, None
    if config.eps is None:
        raise InputError(
            "privacy.eps or privacy.noise_multiplier must be given, got neither.",
            key="privacy.eps",
            hint="privacy.eps=3",
        )
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=config.eps,
        delta=delta,
        sample_rate=sample_rate,
        steps=steps,
        accountant=config.accountant,
    )
    return noise_multiplier, calibration.replace(target=config.eps)
