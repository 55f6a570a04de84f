"""Functions that build the plan of a private or clipping-only run from its configuration."""

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
    """Steps of one phase, as a fine-tuning method requests them."""

    @property
    def method(self) -> str:
        """Name of the method, which determines the trainable parameters."""

    @property
    def steps(self) -> int:
        """Number of noisy steps in the phase, at least 1."""

    @property
    def max_grad_norm(self) -> float | None:
        """Clipping norm of the phase; None: the norm of the configuration."""


def make_clipping_plan(
    config: Clipping, *, num_examples: int, expected_batch_size: int, phases: Sequence[PhaseRequest]
) -> ClippingPlan:
    """Return the plan of a run that clips and adds no noise: ``make_plan`` without epsilon.

    Raises:
        InputError: The batch is too large to sum its gradients in float32.
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
    """Return the plan of a private run, without reading any record.

    Args:
        config: The guarantee, and how gradients are clipped.
        num_examples: Public number of units.
        expected_batch_size: Divisor of every gradient sum. Divided by num_examples, it gives the
            sample rate.
        phases: Phases of the run, in order. All phases share one noise multiplier and one sample
            rate, so they cost as much as one run with all their steps.
        record: Description of a record of the task, as a phrase that follows "one".
        delta_rule: Rule of ``default_delta`` for a configuration without a delta.
        tokenizer: Privacy that the same records spent on the run's tokenizer, which adds to the
            cost.
        mechanism: Configuration of the mechanism, which relates the draws and the noise of
            different steps.
        weights: Function that returns the factor with which each step's gradient enters the final
            weights; see ``Numbers.weights``.

    Raises:
        InputError: The mechanism does not fit the run, delta is too large, or no noise multiplier
            reaches eps. Also raised if the noise is so small that its tails would extend beyond the
            range of float64.
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
    """Reject a batch so large that rounding could change its sum by half of the clipping norm."""
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
    """Reject noise so small that its missing tails could use part of delta.

    The noise ends at ``REACH`` standard deviations. A unit that joins a step moves the sum by at
    most ``1 / noise_multiplier`` standard deviations. Some outcomes are possible for only one of
    two neighboring data sets. Their probability in a run is at most
    ``q * T * Phi(1 / noise_multiplier - REACH)``.
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
    """Return a phase with its clipping norm and the resulting sensitivity."""
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
    """Return the noise multiplier, and its calibration if eps was given."""
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
