"""The smallest noise multiplier under a falling curve, in few evaluations.

An evaluation costs from milliseconds to seconds, and log(epsilon) is nearly a straight line in
log(noise_multiplier), so secants on logarithms find the answer in about four. A bracket guards
them: the curve has steps where an accountant changes its grid or is clamped at 0, and ripples
where rounding shows.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal

from dpft.privacy.accounting.mechanism import AccountantError

MIN_NOISE, MAX_NOISE = 0.02, 1e6
"""Where searches end: below, epsilon is meaningless; above, nothing is learned."""

Curve = Callable[[float], float]
"""Upper bound on epsilon at a noise multiplier; falls as the noise grows."""

_Point = tuple[float, float]

_RELATIVE_WIDTH = 2e-5
_FLOOR = 1e-12


def smallest_noise(curve: Curve, eps: float, *, start: float, tolerance: float = 1e-3) -> float:
    """Returns the smallest noise multiplier at which ``curve`` is at most ``eps``.

    Args:
        curve: Epsilon at a noise multiplier, not rising in it but for ripples.
        eps: Target, above 0.
        start: First noise multiplier to try.
        tolerance: How far below ``eps`` the bound may be, absolute for targets above 1 and
            relative below; a step in the curve ends the search at its edge instead.

    Returns:
        A number of six significant digits, so that a report can print exactly what was used.

    Guarantees:
        The curve was evaluated at the result, and is at most ``eps`` there.

    Raises:
        AccountantError: No noise between ``MIN_NOISE`` and ``MAX_NOISE`` is at the target.
    """
    slack = tolerance * min(1.0, eps)
    point = _evaluate(curve, start)
    if eps - slack <= point[1] <= eps:
        return point[0]
    low, high = _bracket(curve, eps, slack, point)
    while not _is_narrow(low, high, eps, slack):
        width = math.log(high[0] / low[0])
        low, high = _tighten(low, high, eps, _evaluate(curve, _between(low, high, eps - slack / 2)))
        if not _is_narrow(low, high, eps, slack) and math.log(high[0] / low[0]) > width / 2:
            low, high = _tighten(low, high, eps, _evaluate(curve, math.sqrt(low[0] * high[0])))
    return high[0]


def _evaluate(curve: Curve, noise_multiplier: float) -> _Point:
    """Returns (noise multiplier, epsilon), the noise rounded up to six digits and kept in range."""
    digits = Context(prec=6, rounding=ROUND_CEILING)
    noise = float(digits.create_decimal(Decimal(repr(noise_multiplier))))
    noise = min(max(noise, MIN_NOISE), MAX_NOISE)
    return noise, curve(noise)


def _is_narrow(low: _Point, high: _Point, eps: float, slack: float) -> bool:
    return eps - high[1] <= slack or high[0] / low[0] <= 1 + _RELATIVE_WIDTH


def _tighten(low: _Point, high: _Point, eps: float, point: _Point) -> tuple[_Point, _Point]:
    return (low, point) if point[1] <= eps else (point, high)


def _bracket(curve: Curve, eps: float, slack: float, start: _Point) -> tuple[_Point, _Point]:
    """Returns (noise multiplier, epsilon) above and at or below the target."""
    previous = point = start
    # Epsilon falls at least about as fast as 1/noise: a step in proportion mostly crosses over.
    stretch = min(0.4, 1.1 * abs(_log(point[1]) - _log(eps - slack / 2)))
    while (point[1] <= eps) == (start[1] <= eps):
        previous = point
        _check_range(point, eps)
        point = _evaluate(curve, point[0] * math.exp(stretch if point[1] > eps else -stretch))
        stretch *= 2
    return (point, previous) if previous[1] <= eps else (previous, point)


def _check_range(point: _Point, eps: float) -> None:
    noise, epsilon = point
    if epsilon <= eps and noise <= MIN_NOISE:
        raise AccountantError(
            f"a noise multiplier of {MIN_NOISE:g}, which protects nothing, gives {epsilon:.3g} "
            "already; lower privacy.eps, or set privacy=none"
        )
    if epsilon > eps and noise >= MAX_NOISE:
        raise AccountantError(
            f"a noise multiplier of {MAX_NOISE:g} still gives {epsilon:.3g}; raise privacy.eps "
            "or privacy.delta, or take fewer steps"
        )


def _between(low: _Point, high: _Point, eps: float) -> float:
    """Returns where the line through both points, on logarithms, meets ``eps``."""
    top, bottom = _log(low[1]), _log(high[1])
    share = min(max((top - _log(eps)) / (top - bottom), 0.001), 0.999)
    growth: float = (high[0] / low[0]) ** share
    return low[0] * growth


def _log(epsilon: float) -> float:
    return math.log(max(epsilon, _FLOOR))
