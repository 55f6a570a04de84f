"""Description of a mechanism for the accountants: sampled Gaussians and their number of steps.

This module is separate from the accountants, so that the mechanism (a sampled Gaussian, repeated)
and its cost (an epsilon) vary independently. dp_accounting separates events and accountants in the
same way.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpft.errors import InputError

if TYPE_CHECKING:
    import dp_accounting


class AccountantError(ArithmeticError):
    """Error of an accountant that cannot bound a mechanism; the message is the reason."""


RATE_MARGIN = 1e-9
"""Relative amount by which the true sample rate may exceed the nominal rate before epsilon would be
too small. The draw is far more precise (``privacy.sampling``)."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """Poisson sampling, then Gaussian noise on a clipped sum, repeated ``steps`` times.

    Attributes:
        noise_multiplier: Standard deviation of the noise divided by the L2 sensitivity of the sum.
        sample_rate: Probability with which each unit joins a step, independently, in (0, 1].
        steps: Number of noisy steps, including steps with an empty draw.
        delta: Delta at which epsilon is computed, in (0, 1).

    Raises:
        InputError: A value is outside its range; the message names the value.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    delta: float

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise InputError(
                f"noise_multiplier must be positive and finite, got {self.noise_multiplier}. "
                "Use privacy=none to train without noise.",
                key="noise_multiplier",
                value=self.noise_multiplier,
            )
        if not 0 < self.sample_rate <= 1:
            raise InputError(
                f"sample_rate must be in (0, 1], got {self.sample_rate}. Set expected_batch_size "
                "to a number from 1 to num_examples.",
                key="sample_rate",
                value=self.sample_rate,
            )
        if not (self.steps >= 1 and self.steps == int(self.steps)):
            raise InputError(
                f"steps must be a whole number of at least 1, got {self.steps}.",
                key="steps",
                value=self.steps,
            )
        if not 0 < self.delta < 1:
            raise InputError(
                f"delta must be in (0, 1), got {self.delta}. Use at most 1/(10*num_examples).",
                key="delta",
                value=self.delta,
            )

    @property
    def accounted_rate(self) -> float:
        """Sample rate that accountants use: ``sample_rate * (1 + RATE_MARGIN)``, at most 1."""
        return min(1.0, self.sample_rate * (1 + RATE_MARGIN))

    def event(self) -> "dp_accounting.DpEvent":
        """Return the mechanism as dp_accounting's event, for add-or-remove-one neighbors.

        The sampling probability of the event is ``accounted_rate``.
        """
        import dp_accounting

        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        step = dp_accounting.PoissonSampledDpEvent(self.accounted_rate, gaussian)
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Sequence of sampled Gaussians with different noise or rates on the same data.

    Attributes:
        parts: At least one mechanism, all with the same ``delta``, which is that of the
            composition.
    """

    parts: tuple[SampledGaussian, ...]

    def __post_init__(self) -> None:
        if len({part.delta for part in self.parts}) != 1:
            raise ValueError(f"parts must be of one delta, got {self.parts}.")

    @property
    def delta(self) -> float:
        """Delta at which epsilon is computed."""
        return self.parts[0].delta

    @property
    def steps(self) -> int:
        """Number of noisy steps of all parts."""
        return sum(part.steps for part in self.parts)

    def event(self) -> "dp_accounting.DpEvent":
        """Return the parts, one after the other, as one event of dp_accounting."""
        import dp_accounting

        return dp_accounting.ComposedDpEvent([part.event() for part in self.parts])


Mechanism = SampledGaussian | Composition


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """Result of an accountant for a mechanism: proven bounds, an estimate, or some of them.

    Guarantees:
        No value is negative. Bounds below zero, which PRV's error terms can cause, become 0. This
        is valid: 0 is a lower bound for every mechanism, and a larger upper bound is only weaker.

    Attributes:
        lower: Proven lower bound of the mechanism's epsilon; None if the accountant has no lower
            bound.
        estimate: Unproven value; None if the accountant has no estimate.
        upper: Proven upper bound, the only value that may be a headline; None if the accountant has
            no upper bound.

    Raises:
        AccountantError: A value is infinite or not a number, which bounds nothing.
    """

    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is None:
                continue
            if not math.isfinite(value):
                raise AccountantError(f"It gives no finite {name} value.")
            object.__setattr__(self, name, max(0.0, float(value)))


def rounding_slack(steps: int, precision: float) -> float:
    """Return how much probability a composition by FFT may have lost or added by rounding.

    An FFT has a relative error of about ``precision`` per frequency. Raising the transform to the
    power ``steps`` multiplies this error by ``steps``. The inverse transform spreads the error over
    the tail that determines delta. Compared with compositions in 80-bit arithmetic, the error of
    delta was at most 1.25 * steps * precision. This holds for 13 settings (rates 1e-6 to 0.5, 410
    to 1e6 steps, grids of 1e-3 and 1e-4). A factor of 4 therefore leaves a margin of three. The
    slack is negligible in usual settings (4e-13 at 410 steps), but matters if delta is 1e-10 after
    1e5 steps.

    Args:
        steps: Number of compositions.
        precision: Spacing of floating-point numbers at 1 (``finfo.eps``) of the FFT.
    """
    return 4 * steps * precision


def delta_within_rounding(mechanism: Mechanism, precision: float) -> float:
    """Return the reduced delta at which the result of an FFT accountant is an upper bound.

    Raises:
        AccountantError: Rounding could take more than half of delta.
    """
    slack = rounding_slack(mechanism.steps, precision)
    if slack > mechanism.delta / 2:
        raise AccountantError(
            f"Its rounding error over {mechanism.steps} steps ({slack:.1g}) is too large for "
            f"delta = {mechanism.delta:.2g}."
        )
    return mechanism.delta - slack
