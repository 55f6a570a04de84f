"""From public configuration to the plan a run is bound to."""

from dpft.errors import InputError
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.clipping.factors import clipping_style
from dpft.privacy.plan import Calibration, Phase, PrivacyPlan, check_delta, default_delta
from dpft.privacy.settings import DifferentialPrivacy


def make_plan(
    config: DifferentialPrivacy,
    *,
    num_examples: int,
    expected_batch_size: int,
    steps: int,
    method: str,
) -> PrivacyPlan:
    """Returns the plan of a run; reads no record.

    Args:
        config: What is promised, and how gradients are clipped.
        num_examples: The public number of units.
        expected_batch_size: Divisor of every gradient; over num_examples, the sample rate.
        steps: Noisy steps planned.
        method: Name of the fine-tuning method.

    Raises:
        InputError: delta is too large, or no noise multiplier reaches eps.
    """
    delta = default_delta(num_examples) if config.delta is None else config.delta
    check_delta(delta, num_examples=num_examples, allow_large=config.allow_large_delta)
    sample_rate = expected_batch_size / num_examples
    noise_multiplier, calibration = _noise(
        config, delta=delta, sample_rate=sample_rate, steps=steps
    )
    style = clipping_style(config.clipping, max_grad_norm=config.max_grad_norm)
    phase = Phase(
        method=method,
        steps=steps,
        max_grad_norm=config.max_grad_norm,
        sensitivity=style.sensitivity,
    )
    return PrivacyPlan(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        clipping=config.clipping,
        phases=(phase,),
        calibration=calibration,
    )


def _noise(
    config: DifferentialPrivacy, *, delta: float, sample_rate: float, steps: int
) -> tuple[float, Calibration | None]:
    """Returns the noise multiplier, and what chose it where eps was given."""
    if config.noise_multiplier is not None:
        return config.noise_multiplier, None
    if config.eps is None:
        raise InputError("privacy.eps or privacy.noise_multiplier must be given, got neither.")
    return calibrate_noise_multiplier(
        eps=config.eps,
        delta=delta,
        sample_rate=sample_rate,
        steps=steps,
        accountant=config.accountant,
    )
