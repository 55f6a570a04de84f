"""The noise that one epsilon takes over batch sizes (Li et al. 2022, Figures 3 and 6).

What drowns a gradient is not the noise multiplier but the effective one, noise multiplier over
sample rate: the noise on the mean gradient, in units of the clipping norm over the number of
examples (Li et al. 2022, section 3.1.1). The square-root rule, noise = c * sqrt(sample rate) at
fixed epochs (Tramer and Boneh 2020, Claim D.1), gives too little noise at small sample rates
(Li et al. 2022, appendix D).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.errors import InputError, RunError
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.plan import planned_steps


@dataclass(frozen=True, kw_only=True)
class BatchSizeNoise:
    """What one batch size takes.

    Attributes:
        expected_batch_size: Mean size of a draw.
        sample_rate: Probability with which each example joins a step.
        steps: Number of noisy steps.
        noise_multiplier: The smallest for the target; None where none was found.
        accountant: Whose bound chose it.
        epsilon: The bound.
        error: Why none was found.
    """

    expected_batch_size: float
    sample_rate: float
    steps: int
    noise_multiplier: float | None = None
    accountant: str | None = None
    epsilon: float | None = None
    error: str | None = None

    @property
    def effective_noise_multiplier(self) -> float | None:
        """Noise multiplier over sample rate."""
        return None if self.noise_multiplier is None else self.noise_multiplier / self.sample_rate


def noise_over_batch_sizes(
    batch_sizes: Sequence[float],
    *,
    eps: float,
    delta: float,
    num_examples: int,
    steps: int | None = None,
    epochs: float | None = None,
    accountant: str,
    accountants: Accountants,
) -> list[BatchSizeNoise]:
    """Returns the noise for ``eps`` at each batch size, ascending.

    Args:
        batch_sizes: Expected batch sizes, each at most ``num_examples``.
        eps: Target epsilon.
        delta: Target delta.
        num_examples: Public number of examples.
        steps: Fixed number of steps, or None.
        epochs: Fixed number of epochs, where ``steps`` is None.
        accountant: Whose upper bound to hold to.
        accountants: Running accountants.

    Raises:
        InputError: delta is out of range.
    """
    found = []
    for batch in sorted(batch_sizes):
        count = steps
        if count is None:
            assert epochs is not None
            count = _steps(epochs, num_examples, batch)
        about = BatchSizeNoise(
            expected_batch_size=batch, sample_rate=batch / num_examples, steps=count
        )
        _check(about, delta)
        found.append(_calibrated(about, eps, delta, accountant, accountants))
    return found


def square_root_rule(points: Sequence[BatchSizeNoise]) -> list[float | None]:
    """Returns the effective noise multiplier that the square-root rule gives at each point.

    Its constant is fitted at the largest batch size that has a noise multiplier, where the rule
    holds best.
    """
    known = [point for point in points if point.noise_multiplier is not None]
    if not known:
        return [None] * len(points)
    largest = max(known, key=lambda point: point.sample_rate)
    assert largest.noise_multiplier is not None
    constant = largest.noise_multiplier / math.sqrt(largest.sample_rate)
    return [constant / math.sqrt(point.sample_rate) for point in points]


def _steps(epochs: float, num_examples: int, batch: float) -> int:
    return planned_steps(epochs=epochs, num_examples=num_examples, expected_batch_size=batch)


def _check(about: BatchSizeNoise, delta: float) -> None:
    """Refuses numbers that no mechanism can have, whatever its noise is."""
    SampledGaussian(
        noise_multiplier=1, sample_rate=about.sample_rate, steps=about.steps, delta=delta
    )


def _calibrated(
    about: BatchSizeNoise, eps: float, delta: float, accountant: str, accountants: Accountants
) -> BatchSizeNoise:
    noise: dict[str, float | str]
    try:
        multiplier, calibration = calibrate_noise_multiplier(
            eps=eps,
            delta=delta,
            sample_rate=about.sample_rate,
            steps=about.steps,
            accountant=accountant,
            accountants=accountants,
        )
    except (InputError, RunError) as error:
        noise = {"error": str(error).replace("privacy.", "")}
    else:
        noise = {
            "noise_multiplier": multiplier,
            "accountant": calibration.accountant,
            "epsilon": calibration.epsilon,
        }
    return BatchSizeNoise(**{**vars(about), **noise})
