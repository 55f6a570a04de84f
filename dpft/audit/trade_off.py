"""Trade-off and ROC curves: how well an attack can distinguish members from other records.

Definition (Dong, Roth and Su 2019, arXiv 1905.02383): consider all tests that classify at most a
share alpha of the non-members as members. The trade-off curve f(alpha) is the smallest probability
with which such a test misses a member. The curve of a mechanism bounds every attack on one record;
a pair (eps, delta) is one tangent of this curve. Every curve here is symmetric, convex and
decreasing, and holds both for adding and for removing a record.

The ROC curve of an attack is measured. Its true positive rate at a low false positive rate shows
how reliably the attack identifies a few records (Carlini et al. 2022, arXiv 2112.03570). An average
over all records would hide this. In expectation, the ROC curve cannot exceed one minus the
trade-off curve.

>>> float(round(GaussianTradeOff(mu=1.0)(0.05), 4))
0.7405
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.integrate import trapezoid
from scipy.special import betaincinv, ndtr, ndtri

from dpft.errors import InputError
from dpft.privacy.accounting import pld
from dpft.privacy.accounting.mechanism import Mechanism
from dpft.strict_model import Probability, StrictModel


class Share(StrictModel):
    """A share of records with its Clopper-Pearson interval."""

    rate: Probability
    """Measured share."""
    lower: Probability
    """Lower end of the interval."""
    upper: Probability
    """Upper end of the interval."""


class OperatingPoint(StrictModel):
    """Rates of an attack at the lowest threshold within a limit of the false positive rate."""

    limit: float
    """Largest false positive rate allowed."""
    false_positive_rate: Share
    """Share of other records that the attack mistakes for training records."""
    true_positive_rate: Share
    """Share of training records that the attack identifies."""


class OperatingPoints(StrictModel):
    """Results of an attack at each limit of the false positive rate."""

    one_percent: OperatingPoint = Field(alias="0.01")
    """At most 1 false positive in 100."""
    one_in_thousand: OperatingPoint = Field(alias="0.001")
    """At most 1 false positive in 1,000."""


Rates = TypeVar("Rates", float, NDArray[np.float64])
"""A rate in [0, 1], or an array of rates."""

LINES = 2000
"""Number of tangents that bound a mechanism's curve. Their spacing causes a smaller error than the
grid of the PLD."""
LEAST_DELTA = 1e-9
"""Approximate delta of the steepest tangent."""
LARGEST_EPSILON = 512.0


class TradeOff(Protocol):
    """Interface of a lower bound on a symmetric trade-off curve."""

    def __call__(self, alpha: Rates, /) -> Rates:
        """Return the smallest miss rate at a false alarm rate ``alpha``."""
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
class PiecewiseTradeOff:
    """A piecewise linear curve, such as the maximum of several tangents.

    Attributes:
        alphas: The points between the pieces, ascending from 0 to 1.
        betas: The values of the curve at these points, decreasing.
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
    """Return a lower bound on the trade-off curve of a composition of sampled Gaussian steps.

    By duality (Dong et al., Proposition 2.12), the curve is the maximum of the tangents ``1 -
    delta(eps) - e^eps alpha`` and their mirror images. Here, delta(eps) is the larger of the deltas
    for adding and for removing a record.

    Guarantees:
        The deltas are upper bounds of the PLD accountant, increased by the possible rounding error
        (``pld.deltas``). Between tangents, the curve is their envelope. No test against the
        mechanism does better than this curve, so an outcome that contradicts the curve contradicts
        the mechanism.
    """
    epsilons = np.linspace(0.0, _steepest(mechanism), LINES)
    deltas = np.array(pld.deltas(mechanism, epsilons.tolist()))
    return envelope(epsilons, deltas)


def envelope(epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> PiecewiseTradeOff:
    """Return the maximum of the tangents of several pairs of epsilon and delta, made symmetric.

    Args:
        epsilons: Ascending from 0, shape (k,).
        deltas: An upper bound of delta at each epsilon, shape (k,).
    """
    slopes, heights = _hull(np.exp(epsilons), 1 - deltas)
    # The corners of the curve: intersections of each line with the next steeper line.
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
    """Return the lines ``heights - slopes * alpha`` that are the highest at some alpha.

    These lines are the corners of the concave hull of heights over slopes. The middle of three
    lines is nowhere the highest if it is below the straight line between the other two.
    """
    kept: list[int] = []
    for line in range(len(slopes)):
        while len(kept) > 1 and _below(slopes, heights, kept[-2], kept[-1], line):
            kept.pop()
        kept.append(line)
    # A line that is steeper than the highest line at 0 is nowhere the highest.
    kept = kept[: int(np.argmax(heights[kept])) + 1]
    return slopes[kept], heights[kept]


def _below(
    slopes: NDArray[np.float64], heights: NDArray[np.float64], first: int, middle: int, last: int
) -> bool:
    rise = (heights[middle] - heights[first]) * (slopes[last] - slopes[middle])
    return bool(rise <= (heights[last] - heights[middle]) * (slopes[middle] - slopes[first]))


def _steepest(mechanism: Mechanism) -> float:
    """Return an epsilon whose delta is at most ``LEAST_DELTA``, or as small as rounding allows."""
    least = max(LEAST_DELTA, 2 * pld.deltas(mechanism, [LARGEST_EPSILON])[0])
    epsilon = 0.5
    while epsilon < LARGEST_EPSILON and pld.deltas(mechanism, [epsilon])[0] > least:
        epsilon *= 2
    return epsilon


GRID = 100_001
"""Number of points for integrating a curve."""


@dataclass(frozen=True, kw_only=True)
class RocCurve:
    """The rates of an attack at each threshold, from the highest to the lowest threshold.

    Attributes:
        false_positives: Number of non-members classified as members at each threshold, ascending
            from 0.
        true_positives: Number of members classified as members at each threshold, ascending from 0.
    """

    false_positives: tuple[int, ...]
    true_positives: tuple[int, ...]

    @property
    def non_members(self) -> int:
        """Number of records that were not trained on."""
        return self.false_positives[-1]

    @property
    def members(self) -> int:
        """Number of records that were trained on."""
        return self.true_positives[-1]

    @property
    def false_positive_rates(self) -> NDArray[np.float64]:
        """False positive rates, ascending from 0 to 1."""
        return np.array(self.false_positives) / self.non_members

    @property
    def true_positive_rates(self) -> NDArray[np.float64]:
        """True positive rates, ascending from 0 to 1."""
        return np.array(self.true_positives) / self.members

    @property
    def auc(self) -> float:
        """The probability that a member scores higher than a non-member; a tie counts as half."""
        return float(trapezoid(self.true_positive_rates, self.false_positive_rates))


def roc_curve(scores: ArrayLike, members: ArrayLike) -> RocCurve:
    """Return the ROC curve of scores; records with equal scores are always classified alike.

    Args:
        scores: Score of each record, shape (n,); a higher score means more likely a member.
        members: Whether each record is a member, shape (n,), booleans.

    Raises:
        InputError: A score is missing or not finite, or there are no members or no non-members.
    """
    numbers, inside = np.asarray(scores, dtype=np.float64), np.asarray(members, dtype=np.bool_)
    if numbers.ndim != 1 or numbers.shape != inside.shape:
        raise InputError(
            f"scores must contain one for each record, got {numbers.size} scores of {inside.size}"
            " records.",
            key="scores",
        )
    if not np.all(np.isfinite(numbers)):
        raise InputError("scores must be finite, got at least one that is not.", key="scores")
    if inside.all() or not inside.any():
        raise InputError(
            "members must contain at least one true and one false value.", key="members"
        )
    order = np.argsort(-numbers, kind="stable")
    last_of_equals = np.append(np.diff(numbers[order]) != 0, True)
    true, false = np.cumsum(inside[order]), np.cumsum(~inside[order])
    return RocCurve(
        false_positives=(0, *false[last_of_equals].tolist()),
        true_positives=(0, *true[last_of_equals].tolist()),
    )


def check_confidence(confidence: float) -> None:
    """Reject the confidence of a test outside (0, 1)."""
    if not 0 < confidence < 1:
        raise InputError(
            f"confidence must be in (0, 1), got {confidence}. A usual value is 0.95.",
            key="confidence",
            value=confidence,
        )


def operating_point(curve: RocCurve, limit: float, confidence: float = 0.95) -> OperatingPoint:
    """Return the true positive rate of a curve at a false positive rate of at most ``limit``.

    Args:
        curve: ROC curve of an attack.
        limit: Limit in [0, 1], usually 0.01 or 0.001. A limit below 1 / ``curve.non_members``
            allows no false positives.
        confidence: Confidence of each interval.
    """
    check_confidence(confidence)
    if not 0 <= limit <= 1:
        raise InputError(
            f"limit must be a false positive rate in [0, 1], got {limit}.", key="limit", value=limit
        )
    place = int(np.searchsorted(curve.false_positive_rates, limit, side="right")) - 1
    return OperatingPoint(
        limit=limit,
        false_positive_rate=clopper_pearson(
            curve.false_positives[place], curve.non_members, confidence
        ),
        true_positive_rate=clopper_pearson(curve.true_positives[place], curve.members, confidence),
    )


def clopper_pearson(count: int, total: int, confidence: float = 0.95) -> Share:
    """Return a share and its exact two-sided interval (Clopper and Pearson 1934).

    Args:
        count: Number of counted items, at most ``total``.
        total: Number of all items, at least 1.
        confidence: Minimum probability that the interval contains the true share.
    """
    doubt = (1 - confidence) / 2
    lower = float(betaincinv(count, total - count + 1, doubt)) if count else 0.0
    upper = float(betaincinv(count + 1, total - count, 1 - doubt)) if count < total else 1.0
    return Share(rate=count / total, lower=lower, upper=upper)


def largest_true_positive_rate(trade_off: TradeOff, limit: float) -> float:
    """Return the largest true positive rate that a curve allows at a false positive rate."""
    return 1 - float(trade_off(limit))


def largest_auc(trade_off: TradeOff) -> float:
    """Return the largest area under a ROC curve that a trade-off curve allows.

    >>> round(largest_auc(GaussianTradeOff(1.0)), 4)  # Phi(1 / sqrt(2))
    0.7602
    """
    alphas = np.linspace(0.0, 1.0, GRID)
    return float(1 - trapezoid(trade_off(alphas), alphas))
