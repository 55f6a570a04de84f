"""Trade-off curves: how few misses a test of membership can have at each rate of false alarms.

Dong, Roth and Su 2019 (arXiv 1905.02383): f(alpha) is the least chance that a test misses a member
among all tests which call at most a share alpha of non-members one. A mechanism's curve says all
that an attack on one record can reach; (eps, delta) is one tangent of it. Every curve here is
symmetric, convex and falling: that of adding a record and that of removing one, whichever is lower.

>>> float(round(GaussianTradeOff(mu=1.0)(0.05), 4))
0.7405
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpft.privacy.accounting import pld
from dpft.privacy.accounting.mechanism import Mechanism

Rates = TypeVar("Rates", float, NDArray[np.float64])
"""A rate in [0, 1], or an array of them."""

LINES = 2000
"""How many tangents bound a mechanism's curve; their spacing costs less than the PLD's grid."""
LEAST_DELTA = 1e-9
"""The steepest tangent is one whose delta is about this."""
LARGEST_EPSILON = 512.0


class TradeOff(Protocol):
    """A lower bound of a symmetric trade-off curve."""

    def __call__(self, alpha: Rates, /) -> Rates:
        """Returns the least rate of misses at a rate ``alpha`` of false alarms."""
        ...


@dataclass(frozen=True)
class GaussianTradeOff:
    """The curve of one Gaussian mechanism: Phi(Phi^-1(1 - alpha) - mu), Dong et al., equation 6.

    Attributes:
        mu: Distance of the two Gaussians in standard deviations, at least 0.
    """

    mu: float

    def __call__(self, alpha: Rates, /) -> Rates:
        """See ``TradeOff``."""
        return cast(Rates, ndtr(ndtri(1 - alpha) - self.mu))


@dataclass(frozen=True, kw_only=True)
class ApproximateTradeOff:
    """The lowest curve that (epsilon, delta)-differential privacy allows: Dong et al., Prop. 2.5.

    Attributes:
        epsilon: At least 0.
        delta: In [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __call__(self, alpha: Rates, /) -> Rates:
        """See ``TradeOff``."""
        steep = 1 - self.delta - math.exp(min(self.epsilon, 700.0)) * alpha
        flat = math.exp(-self.epsilon) * (1 - self.delta - alpha)
        return cast(Rates, np.maximum(0.0, np.maximum(steep, flat)))


@dataclass(frozen=True, kw_only=True)
class PiecewiseTradeOff:
    """A curve of straight pieces, such as the highest of some tangents.

    Attributes:
        alphas: Where the pieces meet, ascending from 0 to 1.
        betas: The curve there, falling.
    """

    alphas: tuple[float, ...]
    betas: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_alphas", np.asarray(self.alphas))
        object.__setattr__(self, "_betas", np.asarray(self.betas))

    def __call__(self, alpha: Rates, /) -> Rates:
        """See ``TradeOff``."""
        return cast(Rates, np.interp(alpha, self._alphas, self._betas))  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
def mechanism_trade_off(mechanism: Mechanism) -> PiecewiseTradeOff:
    """Returns a lower bound of the curve of sampled Gaussian steps, one after the other.

    By duality (Dong et al., Proposition 2.12) the curve is the highest of the tangents
    ``1 - delta(eps) - e^eps alpha`` and their mirror images, where delta(eps) is the larger of
    that of adding a record and that of removing one.

    Args:
        mechanism: What was planned; its own delta plays no part.

    Guarantees:
        The deltas are PLD's upper bounds, raised by what rounding can take (``pld.deltas``), and
        between tangents the curve is their envelope. So no test does better against the mechanism
        than this curve says, and an outcome that contradicts it contradicts the mechanism.
    """
    epsilons = np.linspace(0.0, _steepest(mechanism), LINES)
    deltas = np.array(pld.deltas(mechanism, epsilons.tolist()))
    return envelope(epsilons, deltas)


def envelope(epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> PiecewiseTradeOff:
    """Returns the highest of the tangents of some pairs of epsilon and delta, made symmetric.

    Args:
        epsilons: Ascending from 0, shape (k,).
        deltas: An upper bound of delta at each, shape (k,).
    """
    slopes, heights = _hull(np.exp(epsilons), 1 - deltas)
    # where each line meets the next steeper one, from the left: the curve's corners
    meet = np.diff(heights) / np.diff(slopes)
    alphas = np.concatenate([[0.0], meet[::-1]])
    betas = heights[::-1] - slopes[::-1] * alphas
    both_alphas = np.concatenate([alphas, betas[::-1], [1.0]])
    both_betas = np.concatenate([betas, alphas[::-1], [0.0]])
    return PiecewiseTradeOff(
        alphas=tuple(np.clip(np.maximum.accumulate(both_alphas), 0.0, 1.0).tolist()),
        betas=tuple(np.clip(np.minimum.accumulate(both_betas), 0.0, 1.0).tolist()),
    )


def _hull(
    slopes: NDArray[np.float64], heights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the lines ``heights - slopes * alpha`` that are the highest somewhere.

    They are the corners of the concave hull of heights over slopes: of three lines the middle one
    is nowhere the highest where it lies below the straight line between the other two.
    """
    kept: list[int] = []
    for line in range(len(slopes)):
        while len(kept) > 1 and _below(slopes, heights, kept[-2], kept[-1], line):
            kept.pop()
        kept.append(line)
    # beyond the highest at 0, a steeper line is nowhere above
    kept = kept[: int(np.argmax(heights[kept])) + 1]
    return slopes[kept], heights[kept]


def _below(
    slopes: NDArray[np.float64], heights: NDArray[np.float64], first: int, middle: int, last: int
) -> bool:
    rise = (heights[middle] - heights[first]) * (slopes[last] - slopes[middle])
    return bool(rise <= (heights[last] - heights[middle]) * (slopes[middle] - slopes[first]))


def _steepest(mechanism: Mechanism) -> float:
    """Returns an epsilon whose delta is ``LEAST_DELTA``, or as little as rounding lets be known."""
    least = max(LEAST_DELTA, 2 * pld.deltas(mechanism, [LARGEST_EPSILON])[0])
    epsilon = 0.5
    while epsilon < LARGEST_EPSILON and pld.deltas(mechanism, [epsilon])[0] > least:
        epsilon *= 2
    return epsilon
