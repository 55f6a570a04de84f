"""Gaussian differential privacy by the central limit theorem: an estimate, not a bound.

Bu et al. 2020 (arXiv 1911.11607), Theorem 5: many sampled Gaussian steps tend to one Gaussian
mechanism with mu = q * sqrt(T * (exp(1 / sigma^2) - 1)). Here q is the sample rate, T the number of
steps and sigma the noise multiplier. The limit can be below the true epsilon, so it is never the
headline of a report. Reports still show it, because published tables contain it (Li et al. 2022,
Table 7).
"""

import math
from collections.abc import Callable

from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, SampledGaussian

_MAX_EXPONENT = 700.0
_FAR = -30.0
"""Below this value, the normal tail is computed by a series; ``erfc`` would underflow from -38."""


def epsilon(mechanism: SampledGaussian) -> Epsilon:
    """Return the central-limit estimate, without bounds.

    Args:
        mechanism: Mechanism to estimate; its ``delta`` is the target.

    Raises:
        AccountantError: The noise is so small that exp(1 / noise_multiplier^2) overflows.
    """
    if mechanism.noise_multiplier < _MAX_EXPONENT**-0.5:
        raise AccountantError("Its central limit does not hold at so small a noise multiplier.")
    exponent = mechanism.noise_multiplier**-2
    mu = mechanism.sample_rate * math.sqrt(mechanism.steps * math.expm1(exponent))
    return Epsilon(estimate=gaussian_epsilon(mu, mechanism.delta))


def noise_multiplier(*, eps: float, delta: float, sample_rate: float, steps: int) -> float:
    """Return the noise multiplier whose central-limit estimate is ``eps``, as a first guess.

    Args:
        eps: Target epsilon, above 0.
        delta: Target delta, in (0, 1).
        sample_rate: Probability of joining a step, in (0, 1].
        steps: Number of steps.
    """
    mu = gaussian_mu(eps, delta)
    noise_multiplier: float = math.log1p((mu / sample_rate) ** 2 / steps) ** -0.5
    return noise_multiplier


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of a mu-Gaussian-DP mechanism (Dong et al. 2019, Corollary 2.13).

    This is the epsilon at which delta = Phi(-eps/mu + mu/2) - exp(eps) * Phi(-eps/mu - mu/2).

    Args:
        mu: Distance of the means of the two Gaussians in standard deviations; 0 if it underflows.
        delta: Target delta, in (0, 1).
    """
    if mu == 0 or _log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    return _root(lambda eps: math.log(delta) - _log_delta(mu, eps), high=1.0)


def gaussian_mu(eps: float, delta: float) -> float:
    """Return the mu at which a Gaussian mechanism has this epsilon: ``gaussian_epsilon`` inverted.

    Args:
        eps: Epsilon of the mechanism, above 0.
        delta: Delta at which this epsilon holds, in (0, 1).
    """
    return _root(lambda mu: _log_delta(mu, eps) - math.log(delta), high=1.0)


def _log_delta(mu: float, eps: float) -> float:
    """Return log delta of Corollary 2.13, computed with logarithms so that no tail underflows."""
    first = _log_normal_cdf(-eps / mu + mu / 2)
    second = eps + _log_normal_cdf(-eps / mu - mu / 2)
    if second >= first:
        return -math.inf
    return first + math.log(-math.expm1(second - first))


def _log_normal_cdf(x: float) -> float:
    """Return log Phi(x), like scipy's ``log_ndtr``, whose import takes longer than an answer."""
    if x > _FAR:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    square = x**-2  # Abramowitz and Stegun, 26.2.12
    series = 1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square * (1 - 9 * square))))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)


def _root(increasing: Callable[[float], float], high: float) -> float:
    """Return the positive root of an increasing function, by doubling and then halving."""
    while increasing(high) < 0:
        high *= 2
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return high
