"""Describe the mechanism to an accountant: a sampled Gaussian and its number of steps.

It stands apart from the accountants so that what happened (a sampled Gaussian, repeated) and what
it costs (an epsilon) vary independently, as in dp_accounting's events and accountants.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpft.errors import InputError

if TYPE_CHECKING:
    import dp_accounting


class AccountantError(ArithmeticError):
    """An accountant that cannot bound a mechanism, with the reason in one plain sentence."""


RATE_MARGIN = 1e-9
"""By how much of it the sample rate may be exceeded before an epsilon would be too small; the draw
itself is far nearer (``privacy.binomial``)."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """Poisson sampling, then Gaussian noise on a clipped sum, repeated ``steps`` times.

    Attributes:
        noise_multiplier: Standard deviation of the noise over the sum's L2 sensitivity.
        sample_rate: Probability with which each unit joins a step, independently, in (0, 1].
        steps: Number of noisy steps, counting the steps whose draw is empty.
        delta: The delta at which epsilon is asked for, in (0, 1).

    Raises:
        InputError: A value is outside its range; the sentence names it.
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
        """The rate that accountants are asked about: above ``sample_rate`` by ``RATE_MARGIN``."""
        return min(1.0, self.sample_rate * (1 + RATE_MARGIN))

    def event(self) -> "dp_accounting.DpEvent":
        """Return the mechanism as dp_accounting's event, for add-or-remove-one neighbors.

        Its sampling probability is ``accounted_rate``.
        """
        import dp_accounting

        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        step = dp_accounting.PoissonSampledDpEvent(self.accounted_rate, gaussian)
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Sampled Gaussians one after the other on the same data, of differing noise or rate.

    Attributes:
        parts: One or more, all with the same ``delta``, which is that of their composition.
    """

    parts: tuple[SampledGaussian, ...]

    def __post_init__(self) -> None:
        if len({part.delta for part in self.parts}) != 1:
            raise ValueError(f"parts must be of one delta, got {self.parts}.")

    @property
    def delta(self) -> float:
        """The delta at which epsilon is asked for."""
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
    """What an accountant says of a mechanism: proven bounds, an estimate, or some of them.

    Guarantees:
        No value is negative: bounds below zero (PRV's error terms can take them there) become 0,
        which every mechanism satisfies as a lower bound and which weakens an upper bound.

    Attributes:
        lower: Proven lower bound on the mechanism's epsilon; None if the accountant gives none.
        estimate: Unproven value; None if the accountant gives none.
        upper: Proven upper bound, the only value fit to be a headline; None if there is none.

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
    """Return how much probability a composition by FFT may have lost or invented.

    An FFT carries a relative error of about ``precision`` per frequency; raising the transform
    to the power ``steps`` multiplies it by ``steps``, and the inverse spreads it over the tail
    that delta is read from. Against compositions in 80-bit arithmetic, the error of delta was at
    most 1.25 * steps * precision on 13 settings (rates 1e-6 to 0.5, 410 to 1e6 steps, grids of
    1e-3 and 1e-4), so 4 leaves a margin of three. It is nothing in usual settings (4e-13 at 410
    steps), and it decides where delta is 1e-10 after 1e5 steps.

    Args:
        steps: Number of compositions.
        precision: Spacing of floating-point numbers at 1 (``finfo.eps``) of the FFT.
    """
    return 4 * steps * precision


def delta_within_rounding(mechanism: Mechanism, precision: float) -> float:
    """Return the smaller delta at which an FFT accountant must be asked to stay an upper bound.

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
