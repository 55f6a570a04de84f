"""Banded matrix factorization: noise that is correlated between steps, with cyclic sampling.

Choquette-Choo et al. 2023 (arXiv 2306.08153) and McKenna 2024 (arXiv 2405.15913). C is a lower
triangular Toeplitz matrix with b bands: coefficients c_0 to c_(b-1), with an L2 norm of at most 1.
Step t gets the noise noise_multiplier * sensitivity * x_t. With fresh standard Gaussians z_t,

    x_t = (z_t - c_1 x_(t-1) - ... - c_(b-1) x_(t-b+1)) / c_0        so that  C x = z.

Let G be the sums of all steps. Releasing G + C^-1 z is the same as releasing C G + z and
multiplying it by C^-1. A unit in step t changes C G by column t of C times its clipped gradient: by
at most ``sensitivity``, in rows t to t+b-1. Two steps of a unit that are at least b apart therefore
change different rows, and each of them is a separate Gaussian mechanism.

The draw ensures that they are b apart (cyclic Poisson sampling, Choquette-Choo et al. 2023, section
4.2). A secret, keyed hash puts each unit in one of b groups, independently of all others. Step t
draws only from group t mod b, at p = b * B / N. Given the groups, a unit can be in ceil(T / b)
steps, each with probability p, independently of other units. T steps therefore cost as much as
ceil(T / b) Poisson-sampled Gaussians of rate p. docs/explanation/clipper.md contains the full
argument.

>>> banded = Banded(bands=2, coefficients=(0.8, 0.6))
>>> banded.compositions([5]), banded.compositions([3, 2]), banded.steps_within(3), banded.rate(0.1)
(3, 3, 6, 0.2)
>>> [round(c, 3) for c in coefficients_for(prefix_sums(100), bands=4)]
[0.683, 0.483, 0.414, 0.359]
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpft.errors import InputError
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.mechanisms.base import (
    MECHANISMS,
    Mechanism,
    MechanismConfig,
    Numbers,
    Sampler,
    StepNoise,
)
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from dpft.privacy.randomness import Randomness

logger = logging.getLogger(__name__)
MOST_BANDS = 64
"""Maximum number of bands that ``bands=auto`` tries; the memory of their noise grows with it."""
NEAR_LEAST = 1.02
"""``bands=auto`` takes the fewest bands whose noise is at most this multiple of the least noise.
Each further band needs memory for one more float64 number per trainable parameter."""
MARGIN = 1e-12
"""Margin by which the norm of the coefficients is below 1, so that rounding cannot exceed 1."""


class Banded(Mechanism):
    """Mechanism with cyclic Poisson draws and noise that is correlated over b steps.

    Raises:
        ValueError: The number of coefficients is not ``bands``, the first one is not positive, or
            their norm is above 1. With a norm above 1, a unit would change the sum by more than the
            noise covers.
    """

    name: str = "banded"
    bands: AtLeastOne
    """b: number of steps over which noise is correlated, and minimum distance of two steps of a
    unit."""
    coefficients: tuple[float, ...]
    """c_0 to c_(b-1), the first column of C."""
    sampler_name: ClassVar[Literal["poisson", "cyclic_poisson"]] = "cyclic_poisson"
    entry_name: ClassVar[str] = "banded_gaussian"
    has_streams: ClassVar[bool] = True

    def _check_fields(self) -> None:
        if len(self.coefficients) != self.bands:
            raise ValueError(f"coefficients must be bands={self.bands} many, got others.")
        if self.coefficients[0] <= 0 or math.fsum(c * c for c in self.coefficients) > 1:
            raise ValueError("coefficients must have a norm of at most 1, the first above 0.")

    def rate(self, sample_rate: float) -> float:
        """Return p = b * B / N, so that a step draws B units on average from one of b groups."""
        return min(1.0, self.bands * sample_rate)

    def compositions(self, streams: Iterable[int]) -> int:
        """Return the maximum number of steps of one unit: ceil(T / b), summed over streams."""
        return sum(-(-steps // self.bands) for steps in streams)

    def steps_within(self, compositions: int) -> int:
        """Return b times ``compositions``."""
        return compositions * self.bands

    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Return the sampler of cyclic Poisson draws."""
        from dpft.privacy.sampling import CyclicPoissonSampler

        return CyclicPoissonSampler(
            rate, randomness.sampling, groups=self.bands, key=randomness.group_key
        )

    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Return the noise of ``CorrelatedNoise``."""
        from dpft.privacy.noise import CorrelatedNoise

        return CorrelatedNoise(randomness.noise, self.coefficients, history)

    def last_noise(self, weights: Sequence[float]) -> float:
        """Return the standard deviation of the noise in the final weights, relative to b = 1."""
        target = last_weights(weights)
        return math.sqrt(target.error(self.coefficients) / target.error((1.0,)))


@dataclass(frozen=True)
class NoiseObjective:
    """Objective for the noise: ``sum over s of shares[s] * y[s]^2``, where ``C y = inputs``.

    y[s] is the factor with which z_s enters the quantity of interest, so the objective is the
    variance of this quantity.
    """

    inputs: "NDArray[np.float64]"
    shares: "NDArray[np.float64]"

    def error(self, coefficients: Sequence[float]) -> float:
        """Return the variance of the noise for a noise multiplier of 1."""
        from scipy.signal import lfilter

        y = lfilter([1.0], coefficients, self.inputs)
        return float((self.shares * y * y).sum())

    def logarithm(self, free: "NDArray[np.float64]") -> "tuple[float, NDArray[np.float64]]":
        """Return the logarithm of the error of (1, free), scaled to norm 1, and its gradient.

        The error is of degree -2 in C, so scaling to norm 1 multiplies it by the squared norm.
        Because y = C^-1 inputs, the derivative of y[s] with respect to c_j is -(C^-1 y)[s - j].
        """
        import numpy as np
        from scipy.signal import lfilter

        column = np.concatenate([[1.0], free])
        y = lfilter([1.0], column, self.inputs)
        twice = lfilter([1.0], column, y)
        weighted = self.shares * y
        error, square = float((weighted * y).sum()), float((column * column).sum())
        if not math.isfinite(error):
            return 1e300, np.zeros_like(free)
        slope = np.array([-2 * float((weighted[j:] * twice[: len(y) - j]).sum()) for j in
                          range(1, len(column))])  # fmt: skip
        return math.log(error) + math.log(square), slope / error + 2 * free / square


def prefix_sums(steps: int) -> NoiseObjective:
    """Return the objective for the noise in the sum of the first t steps, as a mean over all t."""
    import numpy as np

    return NoiseObjective(np.ones(steps), np.arange(steps, 0, -1) / steps)


def last_weights(weights: Sequence[float]) -> NoiseObjective:
    """Return the objective for the noise in the final weights of the model.

    Args:
        weights: The factor with which each step's gradient enters the final weights.
    """
    import numpy as np

    # The factor of z_s is the sum over t of weights[t] * (C^-1)[t, s], a filter backwards in time.
    return NoiseObjective(np.array(weights[::-1], dtype=np.float64), np.ones(len(weights)))


def coefficients_for(target: NoiseObjective, *, bands: int) -> tuple[float, ...]:
    """Return the coefficients with the smallest error, found by L-BFGS from public numbers only.

    The search starts at the coefficients of the square root of the matrix of prefix sums,
    ``binom(2j, j) / 4^j`` (Henzinger and Upadhyay 2023, arXiv 2211.05006).
    """
    import numpy as np
    from scipy.optimize import minimize

    start = np.array([math.comb(2 * j, j) / 4**j for j in range(1, bands)])
    free = start
    if bands > 1:
        free = minimize(target.logarithm, start, jac=True, method="L-BFGS-B").x
    column = [1.0, *map(float, free)]
    norm = math.sqrt(math.fsum(c * c for c in column)) / (1 - MARGIN)
    return tuple(c / norm for c in column)


@MECHANISMS.register("banded")
class BandedConfig(MechanismConfig):
    """Configuration ``mechanism=banded``, conf/mechanism/banded.yaml."""

    makes: ClassVar[type[Mechanism]] = Banded
    name: str = "banded"
    """dp_sgd or banded; chosen by mechanism=NAME."""
    bands: AtLeastOne | Literal["auto"] = "auto"
    """Number of steps over which noise is correlated. auto: the smallest number within 2 % of the
    least noise, computed from public numbers."""
    objective: Literal["prefix", "last"] = "prefix"
    """Weights in which the noise should be small: prefix (on average over the weights of all steps)
    or last (the last weights, under this schedule and momentum)."""

    @property
    def is_resolved(self) -> bool:
        """Whether the number of bands is given."""
        return isinstance(self.bands, int)

    @property
    def history_numbers(self) -> int:
        """One less than the number of bands, or than its maximum for auto."""
        return (self.bands if isinstance(self.bands, int) else MOST_BANDS) - 1

    @property
    def refuses(self) -> Mapping[str, str]:
        """The method rgp, because its carriers depend on the weights of each step."""
        return {
            "rgp": "each step adds its noise to different low-rank factors, so the noise of later"
            " steps cannot cancel it"
        }

    def resolved(self, mechanism: Mechanism) -> MechanismConfig:
        """Return the configuration with the number of bands of ``mechanism``."""
        assert isinstance(mechanism, Banded)
        return self.replace(bands=mechanism.bands)

    def choose(self, numbers: Numbers) -> Mechanism:
        """Return the mechanism with the given bands, or with the fewest that ``NEAR_LEAST`` allows.

        Raises:
            InputError: There are more bands than N / B, so that a group would have fewer units than
                a batch, or more bands than steps. Also raised if bands=auto has no epsilon to
                calibrate to.
        """
        target = self._target(numbers)
        if isinstance(self.bands, int):
            self._check(self.bands, numbers)
            return _banded(target, self.bands)
        tried = self.candidates(numbers)
        enough = NEAR_LEAST**2 * min(error for _, error in tried)
        best, error = next(candidate for candidate in tried if candidate[1] <= enough)
        logger.info(
            "mechanism.bands: %d (chosen from %s). According to RDP, the noise in the weights of %s"
            " is %.2f times that of independent steps.",
            best.bands,
            ", ".join(str(mechanism.bands) for mechanism, _ in tried),
            "all steps" if self.objective == "prefix" else "the last step",
            math.sqrt(error / tried[0][1]),
        )
        return best

    def candidates(self, numbers: Numbers) -> list[tuple[Banded, float]]:
        """Return the mechanism of each number of bands tried, with the variance of its noise.

        Raises:
            InputError: There is no epsilon to calibrate to.
        """
        if numbers.eps is None:
            raise InputError(
                "mechanism.bands=auto needs privacy.eps, because it compares numbers of bands at"
                " the same epsilon. Set privacy.eps, or the number of bands.",
                key="mechanism.bands",
                value=self.bands,
                hint="mechanism.bands=8",
            )
        target, candidates, bands = self._target(numbers), [], 1
        most = min(numbers.num_examples / numbers.expected_batch_size, numbers.steps, MOST_BANDS)
        while bands <= most:
            mechanism = _banded(target, bands)
            noise, _ = calibrate_noise_multiplier(
                eps=numbers.eps,
                delta=numbers.delta,
                sample_rate=mechanism.rate(numbers.sample_rate),
                steps=mechanism.compositions([numbers.steps]),
                accountant="rdp",
            )
            candidates.append((mechanism, noise**2 * target.error(mechanism.coefficients)))
            bands *= 2
        return candidates

    def _target(self, numbers: Numbers) -> NoiseObjective:
        if self.objective == "prefix":
            return prefix_sums(numbers.steps)
        if numbers.weights is None:
            raise InputError(
                "mechanism.objective=last needs the learning rate schedule of a run, which is not"
                " known here.",
                key="mechanism.objective",
                value=self.objective,
                hint="mechanism.objective=prefix",
            )
        return last_weights(numbers.weights())

    @staticmethod
    def _check(bands: int, numbers: Numbers) -> None:
        groups = numbers.num_examples / numbers.expected_batch_size
        if bands > groups:
            raise InputError(
                f"mechanism.bands must be at most num_examples / expected_batch_size ="
                f" {groups:.4g}, got {bands}, because each band draws from its own group of"
                " examples. Lower it, or lower the batch size.",
                key="mechanism.bands",
                value=bands,
                hint=f"mechanism.bands={int(groups)}",
            )
        if bands > numbers.steps:
            raise InputError(
                f"mechanism.bands must be at most the number of steps, {numbers.steps}, got"
                f" {bands}.",
                key="mechanism.bands",
                value=bands,
                hint=f"mechanism.bands={numbers.steps}",
            )


def _banded(target: NoiseObjective, bands: int) -> Banded:
    return Banded(bands=bands, coefficients=coefficients_for(target, bands=bands))
