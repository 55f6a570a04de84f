"""Banded matrix factorization: noise that is correlated between steps, with cyclic sampling.

Choquette-Choo et al. 2023 (arXiv 2306.08153) and McKenna 2024 (arXiv 2405.15913). C is lower
triangular and Toeplitz with b bands: coefficients c_0 to c_(b-1), of L2 norm 1 at most. Step t gets
the noise noise_multiplier * sensitivity * x_t, where, with fresh standard Gaussians z_t,

    x_t = (z_t - c_1 x_(t-1) - ... - c_(b-1) x_(t-b+1)) / c_0        so that  C x = z.

Releasing G + C^-1 z, for the sums G of all steps, is releasing C G + z and multiplying it by C^-1.
A unit in step t moves C G by column t of C times its clipped gradient: by ``sensitivity`` at most,
in rows t to t+b-1. So two steps of a unit that are b or more apart move different rows, and each is
a Gaussian mechanism of its own.

That they are b apart is for the draw to see to (cyclic Poisson sampling, Choquette-Choo et al.
2023, section 4.2): a secret, keyed hash puts each unit in one of b groups, independently of all
others, and step t draws from group t mod b alone, at p = b * B / N. Given the groups, a unit can be
in ceil(T / b) steps, each with the chance p, whatever others do: T steps cost what ceil(T / b)
Poisson-sampled Gaussians of rate p do. docs/explanation/noise.md has the argument in full.

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
"""Most bands that ``bands=auto`` tries; the memory of their noise grows with them."""
NEAR_LEAST = 1.02
"""``bands=auto`` takes the fewest bands whose noise is at most so many times the least: each band
more is kept in memory for every number that trains."""
MARGIN = 1e-12
"""By how much the coefficients' norm stays below 1, above which no rounding takes it then."""


class Banded(Mechanism):
    """Cyclic Poisson draws, and noise of which b steps hang together.

    Raises:
        ValueError: The coefficients are not ``bands`` many, the first is not positive, or their
            norm is above 1, where a unit would move more than the noise is for.
    """

    name: str = "banded"
    bands: AtLeastOne
    """b: steps over which noise hangs together, and between two of one unit."""
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
        """Return p = b * B / N: a step draws from one of b groups as many as of all."""
        return min(1.0, self.bands * sample_rate)

    def compositions(self, streams: Iterable[int]) -> int:
        """Return the most steps that one unit can be in: ceil(T / b) of each stream."""
        return sum(-(-steps // self.bands) for steps in streams)

    def steps_within(self, compositions: int) -> int:
        """Return b times as many."""
        return compositions * self.bands

    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Return the sampler of cyclic Poisson draws."""
        from dpft.privacy.sampling import CyclicPoissonSampler

        return CyclicPoissonSampler(
            rate, randomness.sampling, groups=self.bands, key=randomness.group_key
        )

    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Return the noise of ``correlated_noise``."""
        from dpft.privacy.noise import CorrelatedNoise

        return CorrelatedNoise(randomness.noise, self.coefficients, history)

    def last_noise(self, weights: Sequence[float]) -> float:
        """Return the root of the noise's variance in the last weights over that of b = 1."""
        target = last_weights(weights)
        return math.sqrt(target.error(self.coefficients) / target.error((1.0,)))


@dataclass(frozen=True)
class NoiseObjective:
    """What noise is to be small in: ``sum over s of shares[s] * y[s]^2``, where ``C y = inputs``.

    y is how much of z_s there is, at the end, in what is looked at, so that this is its variance.
    """

    inputs: "NDArray[np.float64]"
    shares: "NDArray[np.float64]"

    def error(self, coefficients: Sequence[float]) -> float:
        """Return the variance of the noise for one of multiplier 1."""
        from scipy.signal import lfilter

        y = lfilter([1.0], coefficients, self.inputs)
        return float((self.shares * y * y).sum())

    def logarithm(self, free: "NDArray[np.float64]") -> "tuple[float, NDArray[np.float64]]":
        """Return the logarithm of the error of (1, free), once its norm is 1, and its gradient.

        The error is of degree -2 in C, so that the norm comes as a factor. As y = C^-1 inputs, the
        derivative of y[s] by c_j is -(C^-1 y)[s - j].
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
    """Return the mean, over t, of the noise in the sum of the first t steps."""
    import numpy as np

    return NoiseObjective(np.ones(steps), np.arange(steps, 0, -1) / steps)


def last_weights(weights: Sequence[float]) -> NoiseObjective:
    """Return the noise in the last weights, which have so much of each step's gradient."""
    import numpy as np

    # z_s is in them with sum over t of weights[t] * (C^-1)[t, s], a filter backwards in time.
    return NoiseObjective(np.array(weights[::-1], dtype=np.float64), np.ones(len(weights)))


def coefficients_for(target: NoiseObjective, *, bands: int) -> tuple[float, ...]:
    """Return the coefficients of least error, by L-BFGS; only public numbers enter.

    The search starts at those of the square root of the matrix of prefix sums, binom(2j, j) / 4^j
    (Henzinger and Upadhyay 2023, arXiv 2211.05006).
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
    """``mechanism=banded``, conf/mechanism/banded.yaml."""

    makes: ClassVar[type[Mechanism]] = Banded
    name: str = "banded"
    """dp_sgd or banded; chosen by mechanism=NAME."""
    bands: AtLeastOne | Literal["auto"] = "auto"
    """Steps over which noise hangs together; auto: the fewest that come within 2 % of the least
    noise, by public numbers."""
    objective: Literal["prefix", "last"] = "prefix"
    """Where noise is to be small: prefix, on average over the weights of all steps, or last, in the
    last ones under this schedule and momentum."""

    @property
    def is_resolved(self) -> bool:
        """Whether the number of bands is given."""
        return isinstance(self.bands, int)

    @property
    def history_numbers(self) -> int:
        """One less than there are bands, or may be."""
        return (self.bands if isinstance(self.bands, int) else MOST_BANDS) - 1

    @property
    def refuses(self) -> Mapping[str, str]:
        """RGP, whose carriers follow from the weights of each step."""
        return {
            "rgp": "the noise of a step is on carriers of its own, so that no later step takes it"
            " back"
        }

    def resolved(self, mechanism: Mechanism) -> MechanismConfig:
        """Return the configuration with its number of bands."""
        assert isinstance(mechanism, Banded)
        return self.replace(bands=mechanism.bands)

    def choose(self, numbers: Numbers) -> Mechanism:
        """Return the mechanism of the bands given, or of the fewest that leave little noise.

        Raises:
            InputError: There are more bands than N / B, so that a group had fewer units than a
                batch, or than steps; or auto has no epsilon to calibrate to.
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
        """Return the mechanism of each number of bands tried, and the variance of its noise.

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
