"""How well scores tell members from non-members at each rate of false alarms, and at most.

The true positive rate at a low false positive rate says what an attack knows for sure of a few
records, which an average over all would hide (Carlini et al. 2022, arXiv 2112.03570). Beside it
stands what no attack on the mechanism can exceed in expectation: one minus its trade-off curve.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import trapezoid
from scipy.special import betaincinv

from dpft.audit.outcome import check_confidence
from dpft.audit.trade_off import TradeOff
from dpft.errors import InputError
from dpft.records.audits import OperatingPoint, Share

GRID = 100_001
"""In how many points a curve is integrated."""


@dataclass(frozen=True, kw_only=True)
class RocCurve:
    """An attack's rates at each of its thresholds, from calling none a member to calling all.

    Attributes:
        false_positives: Number of non-members called members, ascending from 0.
        true_positives: Number of members called so, ascending from 0.
    """

    false_positives: tuple[int, ...]
    true_positives: tuple[int, ...]

    @property
    def non_members(self) -> int:
        """How many records were not trained on."""
        return self.false_positives[-1]

    @property
    def members(self) -> int:
        """How many records were trained on."""
        return self.true_positives[-1]

    @property
    def false_positive_rates(self) -> NDArray[np.float64]:
        """Ascending from 0 to 1."""
        return np.array(self.false_positives) / self.non_members

    @property
    def true_positive_rates(self) -> NDArray[np.float64]:
        """Ascending from 0 to 1."""
        return np.array(self.true_positives) / self.members

    @property
    def auc(self) -> float:
        """The chance that a member scores above a non-member, a tie counting half."""
        return float(trapezoid(self.true_positive_rates, self.false_positive_rates))


def roc_curve(scores: ArrayLike, members: ArrayLike) -> RocCurve:
    """Returns the curve of scores, equal scores always called alike.

    Args:
        scores: One for each record, shape (n,), higher where it is more likely a member.
        members: Whether it is one, shape (n,), of booleans.

    Raises:
        InputError: A score is missing or not finite, or there are no members or no others.
    """
    numbers, inside = np.asarray(scores, dtype=np.float64), np.asarray(members, dtype=np.bool_)
    if numbers.ndim != 1 or numbers.shape != inside.shape:
        raise InputError(f"there are {numbers.size} scores of {inside.size} records.")
    if not np.all(np.isfinite(numbers)):
        raise InputError("a score is not finite; every record needs a finite score.")
    if inside.all() or not inside.any():
        raise InputError("a ROC curve needs members and non-members, at least one of each.")
    order = np.argsort(-numbers, kind="stable")
    last_of_equals = np.append(np.diff(numbers[order]) != 0, True)
    true, false = np.cumsum(inside[order]), np.cumsum(~inside[order])
    return RocCurve(
        false_positives=(0, *false[last_of_equals].tolist()),
        true_positives=(0, *true[last_of_equals].tolist()),
    )


def operating_point(curve: RocCurve, limit: float, confidence: float = 0.95) -> OperatingPoint:
    """Returns the true positive rate of a curve at a false positive rate of at most ``limit``.

    Args:
        curve: Of an attack.
        limit: In [0, 1]; 0.01 and 0.001 are usual. Below one in ``curve.non_members`` it allows
            no false alarm at all.
        confidence: Of each interval.

    Raises:
        InputError: The limit or the confidence is out of range.
    """
    check_confidence(confidence)
    if not 0 <= limit <= 1:
        raise InputError(f"a false positive rate must be in [0, 1], got {limit}.")
    place = int(np.searchsorted(curve.false_positive_rates, limit, side="right")) - 1
    return OperatingPoint(
        limit=limit,
        false_positive_rate=clopper_pearson(
            curve.false_positives[place], curve.non_members, confidence
        ),
        true_positive_rate=clopper_pearson(curve.true_positives[place], curve.members, confidence),
    )


def clopper_pearson(count: int, total: int, confidence: float = 0.95) -> Share:
    """Returns a share and its exact two-sided interval (Clopper and Pearson 1934).

    Args:
        count: How many of them, at most ``total``.
        total: At least 1.
        confidence: How surely the interval holds the true share, at least.
    """
    doubt = (1 - confidence) / 2
    lower = float(betaincinv(count, total - count + 1, doubt)) if count else 0.0
    upper = float(betaincinv(count + 1, total - count, 1 - doubt)) if count < total else 1.0
    return Share(rate=count / total, lower=lower, upper=upper)


def largest_true_positive_rate(trade_off: TradeOff, limit: float) -> float:
    """Returns the largest true positive rate that a trade-off curve allows at a rate of alarms."""
    return 1 - float(trade_off(limit))


def largest_auc(trade_off: TradeOff) -> float:
    """Returns the largest area under a ROC curve that a trade-off curve allows.

    >>> from dpft.audit.trade_off import GaussianTradeOff
    >>> round(largest_auc(GaussianTradeOff(1.0)), 4)  # Phi(1 / sqrt(2))
    0.7602
    """
    alphas = np.linspace(0.0, 1.0, GRID)
    return float(1 - trapezoid(trade_off(alphas), alphas))
