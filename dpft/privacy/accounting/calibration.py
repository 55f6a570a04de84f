"""Calibration: the smallest noise multiplier whose epsilon is at most the target.

*The search.* An evaluation takes from milliseconds to seconds. log(epsilon) is almost linear in
log(noise_multiplier), so secants on logarithms find the answer in about four evaluations. A bracket
makes the search robust. The curve has steps where an accountant changes its grid or is clamped at
0, and ripples where rounding is visible (``smallest_noise``).

*The order.* Each search starts from the result of a cheaper accountant. The central-limit formula
gives a first guess for RDP, which always has an answer but is never tight. PLD starts from RDP, and
PRV, whose evaluations take half a second, starts from PLD. No accountant therefore evaluates noise
far below the answer, where accountants are slow or fail (``calibrate_noise_multiplier``).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import cached_property

from dpft.errors import InputError
from dpft.privacy.accounting import gdp, pld, prv, rdp
from dpft.privacy.accounting.accountants import evaluate, headline_order
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from dpft.privacy.accounting.summary import account
from dpft.strict_model import NotNegative, Positive, StrictModel


class Calibration(StrictModel):
    """How the noise multiplier was calibrated, so that any machine reports the same epsilon.

    Absent if the noise multiplier was given.
    """

    accountant: str
    """Accountant that calibrated the noise."""
    epsilon: NotNegative
    """Upper bound by this accountant for exactly the planned steps."""
    grid: str
    """Precision of this accountant, as text."""
    target: Positive | None = None
    """Target epsilon; null for a search."""


MIN_NOISE, MAX_NOISE = 0.02, 1e6
"""Limits of the search. Below them, epsilon is meaningless; above them, no model learns."""

Curve = Callable[[float], float]
"""Upper bound on epsilon as a function of the noise multiplier; falls as the noise grows."""

_Point = tuple[float, float]

_RELATIVE_WIDTH = 2e-5
_FLOOR = 1e-12


def smallest_noise(curve: Curve, eps: float, *, start: float, tolerance: float = 1e-3) -> float:
    """Return the smallest noise multiplier at which ``curve`` is at most ``eps``.

    Args:
        curve: Epsilon as a function of the noise multiplier, which decreases except for ripples.
        eps: Target epsilon, above 0.
        start: First noise multiplier to try.
        tolerance: How far the bound may be below ``eps``: an absolute amount for targets above 1,
            and a relative amount for smaller targets. If the curve jumps across this range, the
            search ends at the edge of the jump.

    Returns:
        A number with six significant digits, so that a report can print exactly the value used.

    Guarantees:
        The curve was evaluated at the result, and is at most ``eps`` there.

    Raises:
        AccountantError: No noise between ``MIN_NOISE`` and ``MAX_NOISE`` reaches the target.
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
    """Return (noise multiplier, epsilon), with the noise rounded up to six digits and in range."""
    digits = Context(prec=6, rounding=ROUND_CEILING)
    noise = float(digits.create_decimal(Decimal(repr(noise_multiplier))))
    noise = min(max(noise, MIN_NOISE), MAX_NOISE)
    return noise, curve(noise)


def _is_narrow(low: _Point, high: _Point, eps: float, slack: float) -> bool:
    return eps - high[1] <= slack or high[0] / low[0] <= 1 + _RELATIVE_WIDTH


def _tighten(low: _Point, high: _Point, eps: float, point: _Point) -> tuple[_Point, _Point]:
    return (low, point) if point[1] <= eps else (point, high)


def _bracket(curve: Curve, eps: float, slack: float, start: _Point) -> tuple[_Point, _Point]:
    """Return two points (noise multiplier, epsilon), one above the target epsilon and one not."""
    previous = point = start
    # Epsilon falls at least about as fast as 1/noise, so a proportional step usually crosses the
    # target.
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
            "already; lower privacy.eps"
        )
    if epsilon > eps and noise >= MAX_NOISE:
        raise AccountantError(
            f"a noise multiplier of {MAX_NOISE:g} still gives {epsilon:.3g}; raise privacy.eps "
            "or privacy.delta, or take fewer steps"
        )


def _between(low: _Point, high: _Point, eps: float) -> float:
    """Return the noise at which the log-log line through both points reaches ``eps``."""
    top, bottom = _log(low[1]), _log(high[1])
    share = min(max((top - _log(eps)) / (top - bottom), 0.001), 0.999)
    growth: float = (high[0] / low[0]) ** share
    return low[0] * growth


def _log(epsilon: float) -> float:
    return math.log(max(epsilon, _FLOOR))


TOLERANCE = 0.02
"""Maximum amount by which the reported bound of a calibration may be below the target."""

_GRIDS = {"rdp": rdp.GRID, "pld": pld.GRID, "prv": prv.GRID}


def calibrate_noise_multiplier(
    *,
    eps: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "prv",
) -> tuple[float, Calibration]:
    """Return the smallest noise multiplier that keeps the reported epsilon within ``eps``.

    Args:
        eps: Target epsilon, above 0.
        delta: Target delta, in (0, 1).
        sample_rate: Probability with which each unit joins a step, in (0, 1].
        steps: Number of noisy steps.
        accountant: Accountant whose upper bound must be within ``eps``: "prv", "pld" or "rdp". If
            it has no answer, the next accountant in that order calibrates, and the result names it.

    Returns:
        The noise multiplier, with six significant digits so that a report can print exactly the
        value used, and its calibration.

    Guarantees:
        ``account`` of the mechanism with ``accountant=calibration.accountant`` reports
        ``calibration.epsilon``, which is at most ``eps``.

    Raises:
        InputError: A value is out of range, or no accountant finds a noise multiplier.
    """
    if not (eps > 0 and math.isfinite(eps)):
        raise InputError(
            f"privacy.eps must be a positive, finite number, got {eps}. "
            "Use privacy=none to train without privacy.",
            key="privacy.eps",
            value=eps,
            hint="privacy.eps=3",
        )
    order = headline_order(accountant)
    unit_noise = SampledGaussian(
        noise_multiplier=1.0, sample_rate=sample_rate, steps=steps, delta=delta
    )
    return _Calibrator(unit_noise, eps).first_of(order)


class _Calibrator:
    """Search for the noise multiplier of one mechanism at one target epsilon."""

    def __init__(self, mechanism: SampledGaussian, eps: float) -> None:
        self._mechanism = mechanism
        self._eps = eps

    def first_of(self, order: tuple[str, ...]) -> tuple[float, Calibration]:
        """Return the calibration by the first accountant of ``order`` that succeeds.

        Raises:
            InputError: No accountant succeeds.
        """
        search = {"rdp": self._by_rdp, "pld": self._by_pld, "prv": self._by_prv}
        errors: dict[str, AccountantError] = {}
        for name in order:
            try:
                noise_multiplier = search[name]()
                return noise_multiplier, self._confirm(name, noise_multiplier)
            except AccountantError as error:
                errors[name] = error
        last = order[-1]
        raise InputError(
            f"no accountant finds noise for privacy.eps={self._eps:g} ({last}: {errors[last]}).",
            key="privacy.eps",
            value=self._eps,
        )

    def _by_rdp(self) -> float:
        guess = gdp.noise_multiplier(
            eps=self._eps,
            delta=self._mechanism.delta,
            sample_rate=self._mechanism.sample_rate,
            steps=self._mechanism.steps,
        )
        return smallest_noise(self._curve("rdp"), self._eps, start=guess)

    def _by_pld(self) -> float:
        return smallest_noise(self._curve("pld"), self._eps, start=self._enough)

    def _by_prv(self) -> float:
        """Search from the noise at which PLD gives the target minus PRV's error.

        From there, the search needs only one or two evaluations of PRV.
        """
        if self._mechanism.accounted_rate == 1:
            return smallest_noise(self._curve("prv"), self._eps, start=self._enough)
        margin = min(0.002, 0.02 * self._eps)
        reach = self._eps - prv.EPS_ERROR - margin
        if reach < self._eps / 2:
            raise AccountantError(f"its error of {prv.EPS_ERROR:g} is too large for this target")
        start = smallest_noise(self._curve("pld"), reach, start=self._enough)
        return smallest_noise(self._curve("prv"), self._eps, start=start, tolerance=3 * margin)

    @cached_property
    def _enough(self) -> float:
        """Noise multiplier that suffices by RDP; tighter accountants search downwards from it."""
        try:
            return self._by_rdp()
        except AccountantError:
            return MAX_NOISE

    def _curve(self, name: str) -> Curve:
        def upper_bound(noise_multiplier: float) -> float:
            epsilon = evaluate(name, self._at(noise_multiplier))
            assert epsilon.upper is not None
            return epsilon.upper

        return upper_bound

    def _at(self, noise_multiplier: float) -> SampledGaussian:
        return replace(self._mechanism, noise_multiplier=noise_multiplier)

    def _confirm(self, name: str, noise_multiplier: float) -> Calibration:
        """Return the calibration as a report will show it, after checking its bound."""
        report = account(self._at(noise_multiplier), accountant=name)
        is_close = name == "rdp" or report.epsilon >= self._eps - TOLERANCE
        if report.accountant != name or not (report.epsilon <= self._eps and is_close):
            raise AccountantError("its bound is rejected at the noise that it requires")
        exact = name == "prv" and self._mechanism.accounted_rate == 1
        grid = prv.EXACT if exact else _GRIDS[name]
        return Calibration(accountant=name, epsilon=report.epsilon, grid=grid)
