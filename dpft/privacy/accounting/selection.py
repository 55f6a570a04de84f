"""Private hyperparameter search: a random number of trials, and the cost of choosing the best.

Papernot & Steinke 2022 (arXiv 2110.03620), Definition 1 and Theorem 2. The number of trials K is
secret. Its distribution is truncated negative binomial with parameters eta > -1 and gamma in (0,
1). Each trial draws its setting independently. Let epsilon(order) be the Renyi divergence of one
trial. The release of the best trial then has, at each order > 1,

    epsilon(order) + log(E[K]) / (order - 1)
        + (1 + eta) * min over other >= 1 of ((1 - 1/other) * epsilon(other) + log(1/gamma) / other)

If trials have different settings, each counts as a trial with the pointwise largest curve of all
settings. This is valid because a trial draws its setting without using data, and because Renyi
divergence is quasi-convex.

Algorithm 1 of the paper draws K first. It then draws the setting of every trial, independently,
uniformly and with replacement. All numbers come from a cryptographic stream, because an attacker
who can guess K learns more than the bound allows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpft.errors import InputError
from dpft.privacy.accounting import gdp, rdp
from dpft.privacy.accounting.calibration import Calibration, smallest_noise
from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, SampledGaussian
from dpft.privacy.cipher import Address, Purpose, keystream

ACCOUNTANT = "rdp (Papernot & Steinke)"
"""Name of this bound in reports."""
ROUNDS = 20
"""Maximum number of times that all noise multipliers of a search are raised, until the pointwise
maximum of the curves is within the target."""
_STEP = 5e-4


@dataclass(frozen=True, kw_only=True)
class TrialCount:
    """Truncated negative binomial distribution of the number of trials (Definition 1).

    eta=0 is the logarithmic distribution and eta=1 the geometric distribution.

    Raises:
        InputError: A parameter is out of range.
    """

    eta: float = 0.0
    gamma: float = 0.5

    def __post_init__(self) -> None:
        if not (self.eta > -1 and math.isfinite(self.eta)):
            raise InputError(
                f"tune.eta must be a finite number above -1, got {self.eta}.",
                key="tune.eta",
                value=self.eta,
            )
        if not 0 < self.gamma < 1:
            raise InputError(
                f"tune.gamma must be above 0 and below 1, got {self.gamma}.",
                key="tune.gamma",
                value=self.gamma,
            )

    @property
    def expected(self) -> float:
        """Mean number of trials, E[K].

        The mean is (1/gamma - 1) / log(1/gamma) for eta=0, and eta * (1 - gamma) / (gamma * (1 -
        gamma^eta)) otherwise.
        """
        if self.eta == 0:
            return (1 / self.gamma - 1) / -math.log(self.gamma)
        missing = -math.expm1(self.eta * math.log(self.gamma))
        return self.eta * (1 - self.gamma) / (self.gamma * missing)

    def quantile(self, share: float) -> int:
        """Return the smallest number of trials that at most a ``share`` of all searches exceeds.

        The probabilities are those of Definition 1 in floating point, for planning and not for
        drawing.
        """
        number, passed = 1, 0.0
        power = math.expm1(-self.eta * math.log(self.gamma))
        term = (1 - self.gamma) * (self.eta / power if self.eta else -1 / math.log(self.gamma))
        while (passed := passed + term) < 1 - share:
            term *= (1 - self.gamma) * (number + self.eta) / (number + 1)
            number += 1
        return number


def selection_curve(trial: NDArray[np.float64], count: TrialCount) -> NDArray[np.float64]:
    """Return the Renyi divergence of releasing the best trial, at each of ``rdp.ORDERS``.

    Args:
        trial: Renyi divergence of one trial, shape (len(rdp.ORDERS),).
        count: Distribution of the number of trials.
    """
    orders = np.array(rdp.ORDERS)
    other = (1 - 1 / orders) * trial - math.log(count.gamma) / orders
    # the term of other = 1, where a finite divergence has the factor 0
    at_one = -math.log(count.gamma) if math.isfinite(trial[0]) else math.inf
    least_other = min(other.min(), at_one)
    released = trial + math.log(count.expected) / (orders - 1) + (1 + count.eta) * least_other
    # Renyi divergence never falls with the order, so a bound at a larger order also holds at this
    # one.
    least: NDArray[np.float64] = np.minimum.accumulate(released[::-1])[::-1]
    return least


def selection_epsilon(trials: Iterable[SampledGaussian], count: TrialCount) -> Epsilon:
    """Return the upper bound for releasing the best trial, for any settings that trials draw.

    Args:
        trials: Mechanism of every setting that a trial may draw, at least one, all with one delta.
        count: Distribution of the number of trials.

    Raises:
        AccountantError: No order gives a bound.
    """
    mechanisms = list(trials)
    (delta,) = {mechanism.delta for mechanism in mechanisms}
    largest = np.maximum.reduce([rdp.curve(mechanism) for mechanism in mechanisms])
    return rdp.epsilon_of_curve(selection_curve(largest, count), delta)


def calibrate_trials(
    trials: Iterable[SampledGaussian], *, eps: float, count: TrialCount
) -> tuple[list[float], Calibration]:
    """Return the noise multiplier of every setting so that the whole search is within ``eps``.

    The noise of each setting is first searched separately, so that long runs or large batches get
    more noise. If the curves of different settings cross, all noise multipliers are then raised, in
    a few rounds, until the pointwise maximum of the curves is also within ``eps``. In total, this
    computes about eight curves of each different mechanism.

    Args:
        trials: Mechanism of every setting, with one delta; the noise multiplier is not used.
        eps: Target epsilon for the release of the best trial, above 0.
        count: Distribution of the number of trials.

    Guarantees:
        ``selection_epsilon`` of the settings at these noise multipliers is ``calibration.epsilon``,
        which is at most ``eps``.

    Raises:
        InputError: No noise reaches ``eps``.
    """
    shapes = [replace(trial, noise_multiplier=1.0) for trial in trials]
    # First guess: one trial costs about a third of the budget.
    noise = {
        shape: gdp.noise_multiplier(
            eps=eps / 3, delta=shape.delta, sample_rate=shape.sample_rate, steps=shape.steps
        )
        for shape in shapes
    }
    target = eps
    try:
        for _ in range(ROUNDS):
            noise = {shape: _noise_of(shape, target, count, noise[shape]) for shape in noise}
            calibrated = [replace(shape, noise_multiplier=noise[shape]) for shape in noise]
            bound = selection_epsilon(calibrated, count).upper
            assert bound is not None
            if bound <= eps:
                calibration = Calibration(accountant=ACCOUNTANT, epsilon=bound, grid=rdp.GRID)
                return [noise[shape] for shape in shapes], calibration
            target *= (eps / bound) * (1 - _STEP)
        raise AccountantError("the curves of the search space are too far apart")
    except AccountantError as error:
        raise InputError(
            f"no noise reaches privacy.eps={eps:g} in a search with tune.eta={count.eta:g} and"
            f" tune.gamma={count.gamma:g} ({error}). Raise eps, delta or gamma.",
            key="privacy.eps",
            value=eps,
        ) from error


def _noise_of(shape: SampledGaussian, eps: float, count: TrialCount, start: float) -> float:
    def bound(noise_multiplier: float) -> float:
        upper = selection_epsilon([replace(shape, noise_multiplier=noise_multiplier)], count).upper
        assert upper is not None
        return upper

    return smallest_noise(bound, eps, start=start)


class UniformStream:
    """Uniform float64 numbers in [0, 1) from ChaCha20, with 53 random bits each."""

    def __init__(self, key: bytes) -> None:
        """Start the stream of ``key`` (32 bytes)."""
        self._key = key
        self._draws = 0

    def draw(self, count: int) -> NDArray[np.float64]:
        """Return the next ``count`` numbers, shape (count,)."""
        address = Address(Purpose.SEARCH, block=self._draws)
        self._draws += 1
        words = np.frombuffer(keystream(self._key, address, 8 * count), dtype=np.uint64)
        return (words >> np.uint64(11)) * np.float64(2.0**-53)


_WORDS = 4
"""Number of 53-bit uniforms that are combined into a uniform of 212 bits. With this many bits, a
draw can also fall into the far tail, which a float would cut off."""
_DIGITS = Context(prec=70)
_NOTHING = Decimal("1e-66")


def draw_count(count: TrialCount, stream: UniformStream) -> int:
    """Return a number of trials, by inversion of the distribution function.

    The distribution is the one of Definition 1: P(1) = (1 - gamma) * eta / (gamma^-eta - 1), or (1
    - gamma) / log(1/gamma) for eta=0, and P(k+1) = P(k) * (1 - gamma) * (k + eta) / (k + 1).
    Arithmetic with 70 digits keeps all probabilities, also in the far tail, within 1e-60 of those
    accounted for.
    """
    eta, gamma, uniform = Decimal(count.eta), Decimal(count.gamma), _uniform(stream)
    with localcontext(_DIGITS):
        tail = eta / (gamma**-eta - 1) if eta else -1 / gamma.ln()
        number, term = 1, (1 - gamma) * tail
        passed = term
        while passed <= uniform and term > _NOTHING:
            term *= (1 - gamma) * (number + eta) / (number + 1)
            passed += term
            number += 1
    return number


def draw_settings(
    space: Mapping[str, Sequence[Any]], number: int, stream: UniformStream
) -> list[dict[str, Any]]:
    """Return the settings of ``number`` trials, each value drawn uniformly and independently.

    Args:
        space: Possible values of each key, at least one.
        number: Number of trials.
        stream: Source of randomness.
    """
    return [
        {key: values[int(float(stream.draw(1)[0]) * len(values))] for key, values in space.items()}
        for _ in range(number)
    ]


def _uniform(stream: UniformStream) -> Decimal:
    """Return a number in [0, 1) with 212 bits, which fit into 70 digits."""
    bits = 0
    for word in stream.draw(_WORDS):
        bits = (bits << 53) | int(float(word) * 2**53)
    return _DIGITS.divide(Decimal(bits), Decimal(2 ** (53 * _WORDS)))
