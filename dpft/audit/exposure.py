"""How far a model has come to expect one canary among all it could have been: exposure, in bits.

Carlini et al. 2019, "The secret sharer" (arXiv 1802.08232). A canary is a fixed prefix and a suffix
drawn at random from a space R. The model gives every suffix of R a log-perplexity (bits, summed
over its tokens; lower where it is more likely), and exposure is log2 |R| - log2 rank, the rank
being how many suffixes are at most as surprising as the canary's. A canary that was never trained
on has a rank drawn evenly from R: P(exposure >= x) = 2^-x, of mean 1 / ln 2 = 1.4427 bits. One
trained on once under (eps, delta)-differential privacy has P(exposure >= x) <= e^eps 2^-x + delta.

Where R is too large to rank, a skew-normal distribution is fitted to the log-perplexities of some
of it (their "approximation by distribution model", which Li et al. 2022, Appendix M use), and
exposure is minus log2 of its mass below the canary's. It can exceed log2 |R|, as it extrapolates;
how well it fits is told by the Kolmogorov-Smirnov distance.

>>> exact_exposure(3.0, [3.0, 4.0, 5.0, 6.0])
2.0
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import trapezoid
from scipy.special import log_ndtr

from dpft.data.canary_config import FEWEST_SUFFIXES
from dpft.errors import InputError

MEAN_UNSEEN = 1 / math.log(2)
"""Mean exposure, in bits, of a canary that was not trained on."""
TAIL = 1e-4
"""A probability below this is integrated in logarithms."""
STEPS, REACH = 4000, 60.0
"""How finely and how far, in lengths of its first decay, a tail is integrated."""


@dataclass(frozen=True, kw_only=True)
class SkewNormal:
    """A skew-normal distribution fitted to log-perplexities, and how well it fits them.

    Attributes:
        shape: Skewness parameter; 0 is a normal distribution.
        location: In bits.
        scale: In bits, above 0.
        distance: Kolmogorov-Smirnov: the largest distance of the two distribution functions.
        p_value: Of that distance. As the parameters were fitted to the same values it is too
            large, so a small one says that the fit is bad, and a large one little.
        count: To how many values it was fitted.
    """

    shape: float
    location: float
    scale: float
    distance: float
    p_value: float
    count: int

    def exposure(self, log_perplexity: float) -> float:
        """Returns minus log2 of the mass at or below a log-perplexity, in bits.

        Its error is below 1e-3 bits also where that mass is far below the smallest float.
        """
        from scipy.stats import skewnorm

        place = (log_perplexity - self.location) / self.scale
        mass = float(skewnorm.cdf(place, self.shape))
        if mass >= TAIL:
            return -math.log2(mass)
        return -self._log_tail(place) / math.log(2)

    def _log_tail(self, place: float) -> float:
        """Returns the logarithm of the mass below a place in the lower tail.

        The logarithm of the density is concave, so from there on down it falls at least as fast as
        at first: the integral is that of an exponential, times a factor that is integrated.
        """
        slope = self._log_density(np.array([place])) - self._log_density(np.array([place - 1e-5]))
        decay = float(slope[0]) / 1e-5
        lengths = np.linspace(0.0, REACH, STEPS + 1)
        density = self._log_density(place - lengths / decay)
        weights = np.exp(density - density[0])
        return float(density[0]) + math.log(trapezoid(weights, lengths) / decay)

    def _log_density(self, place: NDArray[np.float64]) -> NDArray[np.float64]:
        log_normal = -(place**2) / 2 - math.log(2 * math.pi) / 2
        density: NDArray[np.float64] = math.log(2) + log_normal + log_ndtr(self.shape * place)
        return density


def exact_exposure(log_perplexity: float, candidates: ArrayLike) -> float:
    """Returns the exposure of a canary by its rank among all suffixes.

    Args:
        log_perplexity: Of the canary's suffix, as computed among the candidates.
        candidates: Of every suffix that it could have been, its own among them, shape (r,).

    Raises:
        InputError: A value is not finite, or the canary's is not among the candidates.
    """
    values = _finite(candidates)
    if not np.any(values == log_perplexity):
        raise InputError(
            f"the canary's log-perplexity ({log_perplexity}) is not among the {len(values)} of "
            "the candidates; rank it among all suffixes, its own too, scored in one way."
        )
    return math.log2(len(values)) - math.log2(np.count_nonzero(values <= log_perplexity))


def all_exact_exposures(candidates: ArrayLike) -> NDArray[np.float64]:
    """Returns the exposure that each candidate would have as the canary, shape (r,).

    A canary never trained on is one of them drawn at random, so these are the distribution of its
    exposure; equal log-perplexities share the larger rank.

    Raises:
        InputError: A value is not finite.
    """
    values = _finite(candidates)
    ranks = np.searchsorted(np.sort(values), values, side="right")
    exposures: NDArray[np.float64] = math.log2(len(values)) - np.log2(ranks)
    return exposures


def fit_skew_normal(sample: ArrayLike) -> SkewNormal:
    """Returns the skew-normal distribution of most likelihood for some log-perplexities.

    Args:
        sample: Those of suffixes drawn evenly from all, shape (s,), in bits; all of them where
            there are not too many to score.

    Raises:
        InputError: There are fewer than ``FEWEST_SUFFIXES``, one is not finite, or all are equal.
    """
    from scipy.stats import kstest, skewnorm

    values = _finite(sample)
    if len(values) < FEWEST_SUFFIXES or np.ptp(values) == 0:
        raise InputError(
            f"a skew-normal distribution needs at least {FEWEST_SUFFIXES} log-perplexities that"
            f" differ, got {len(values)}; take the exact rank."
        )
    shape, location, scale = map(float, skewnorm.fit(values))
    fit = kstest(values, skewnorm(shape, location, scale).cdf)
    return SkewNormal(
        shape=shape,
        location=location,
        scale=scale,
        distance=float(fit.statistic),
        p_value=float(fit.pvalue),
        count=len(values),
    )


def chance_bound(exposure: float, *, epsilon: float, delta: float) -> float:
    """Returns how probable at most so large an exposure is of a canary trained on once.

    Args:
        exposure: In bits, by exact rank.
        epsilon: Of the run for one record, at least 0; 0 with delta 0: never trained on.
        delta: In [0, 1).
    """
    return min(1.0, math.exp(min(0.0, epsilon - exposure * math.log(2))) + delta)


def mean_bound(*, epsilon: float, delta: float, candidates: int) -> float:
    """Returns how large the mean exposure of canaries trained on once can be, in bits.

    The integral of ``chance_bound``: (epsilon + 1) / ln 2, and delta for each bit there is.

    >>> round(mean_bound(epsilon=3.0, delta=0.0, candidates=100_000), 2)
    5.77
    """
    return (epsilon + 1) / math.log(2) + delta * math.log2(candidates)


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(numbers) == 0 or not np.all(np.isfinite(numbers)):
        raise InputError(
            f"log-perplexities must be finite, and there must be some; {len(numbers)} came, "
            f"{np.count_nonzero(~np.isfinite(numbers))} of them not finite."
        )
    return numbers
