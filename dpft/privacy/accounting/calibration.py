"""From a target epsilon to the smallest noise multiplier whose reported bound is within it.

*The search.* An evaluation costs from milliseconds to seconds, and log(epsilon) is nearly a
straight line in log(noise_multiplier), so secants on logarithms find the answer in about four. A
bracket guards them: the curve has steps where an accountant changes its grid or is clamped at 0,
and ripples where rounding shows (``smallest_noise``).

*The order.* Each search starts where a cheaper accountant ended: the central-limit formula
guesses, RDP (always there, never tight) comes down to PLD, and PLD to PRV, whose evaluations cost
half a second. So no accountant is asked about noise far below the answer, where they are slow or
fail (``calibrate_noise_multiplier``).

*Early.* A command may begin before it asks, beside whatever else it does first: the accountants
answer in processes of their own, and a thread that mostly waits for them asks
(``EarlyCalibration``).
"""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import cached_property
from threading import Thread
from typing import Protocol

from dpft.errors import DpftError, InputError, RunError
from dpft.privacy.accounting import gdp, pld, prv, rdp
from dpft.privacy.accounting.accountants import Accountants, headline_order
from dpft.privacy.accounting.mechanism import AccountantError, AccountantTimeout, SampledGaussian
from dpft.privacy.accounting.summary import account
from dpft.records.ledger import Calibration

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
            "already; lower privacy.eps"
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


TOLERANCE = 0.02
"""Most by which the reported bound may fall short of the target."""

_GRIDS = {"rdp": rdp.GRID, "pld": pld.GRID, "prv": prv.GRID}


class Calibrate(Protocol):
    """What finds the noise of a target: ``calibrate_noise_multiplier``, or one begun before."""

    def __call__(
        self, *, eps: float, delta: float, sample_rate: float, steps: int, accountant: str
    ) -> tuple[float, Calibration]:
        """See ``calibrate_noise_multiplier``."""


def calibrate_noise_multiplier(
    *,
    eps: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "prv",
    accountants: Accountants | None = None,
) -> tuple[float, Calibration]:
    """Returns the smallest noise multiplier that keeps the reported epsilon within ``eps``.

    Args:
        eps: Target epsilon, above 0.
        delta: Target delta, in (0, 1).
        sample_rate: Probability with which each unit joins a step, in (0, 1].
        steps: Number of noisy steps.
        accountant: Whose upper bound to hold to: "prv", "pld" or "rdp". Where it has no answer,
            the next in that order calibrates, and the result names it.
        accountants: Running accountants to share; by default some are started and ended here.

    Returns:
        The noise multiplier, of six significant digits, so that a report can print exactly what
        was used; and what chose it.

    Guarantees:
        ``account`` of the mechanism with ``accountant=calibration.accountant`` reports
        ``calibration.epsilon``, which is at most ``eps``.

    Raises:
        InputError: A value is out of range, or no noise multiplier gives ``eps``.
        RunError: No accountant found one, and one of them timed out, so that there may be one.
    """
    if not (eps > 0 and math.isfinite(eps)):
        raise InputError(
            f"privacy.eps must be a positive, finite number, got {eps}; "
            "privacy=none trains without a guarantee."
        )
    order = headline_order(accountant)
    unit_noise = SampledGaussian(
        noise_multiplier=1.0, sample_rate=sample_rate, steps=steps, delta=delta
    )
    with ExitStack() as stack:
        running = accountants or stack.enter_context(Accountants())
        return _Calibrator(unit_noise, eps, running).first_of(order)


class _Calibrator:
    """One target for one mechanism, whose noise is free, under running accountants."""

    def __init__(self, mechanism: SampledGaussian, eps: float, accountants: Accountants) -> None:
        self._mechanism = mechanism
        self._eps = eps
        self._accountants = accountants

    def first_of(self, order: tuple[str, ...]) -> tuple[float, Calibration]:
        """Returns the calibration by the first accountant of ``order`` that can.

        Raises:
            InputError: None can.
            RunError: None did, and one of them timed out.
        """
        self._accountants.start()
        search = {"rdp": self._by_rdp, "pld": self._by_pld, "prv": self._by_prv}
        errors: dict[str, AccountantError] = {}
        for name in order:
            try:
                noise_multiplier = search[name]()
                return noise_multiplier, self._confirm(name, noise_multiplier)
            except AccountantError as error:
                errors[name] = error
        late = [name for name, error in errors.items() if isinstance(error, AccountantTimeout)]
        if late:
            raise RunError(
                f"privacy.eps={self._eps:g}: no accountant found the noise, and {late[-1]} timed"
                f" out ({late[-1]}: {errors[late[-1]]}); {AccountantTimeout.way_out}."
            )
        last = order[-1]
        raise InputError(
            f"privacy.eps={self._eps:g} is out of reach of every accountant"
            f" ({last}: {errors[last]})."
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
        """Starts where PLD meets the target less PRV's own error: one or two evaluations."""
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
        """Noise that RDP finds enough, from where tighter accountants come down cheaply."""
        try:
            return self._by_rdp()
        except AccountantError:
            return MAX_NOISE

    def _curve(self, name: str) -> Curve:
        def upper_bound(noise_multiplier: float) -> float:
            epsilon = self._accountants.evaluate(name, self._at(noise_multiplier))
            assert epsilon.upper is not None
            return epsilon.upper

        return upper_bound

    def _at(self, noise_multiplier: float) -> SampledGaussian:
        return replace(self._mechanism, noise_multiplier=noise_multiplier)

    def _confirm(self, name: str, noise_multiplier: float) -> Calibration:
        """Returns the calibration as a report will show it."""
        report = account(self._at(noise_multiplier), accountant=name, accountants=self._accountants)
        if report.accountant != name or not self._is_met(report.epsilon, name):
            raise AccountantError("its bound is refused at the noise it asks for")
        exact = name == "prv" and self._mechanism.accounted_rate == 1
        grid = prv.EXACT if exact else _GRIDS[name]
        return Calibration(accountant=name, epsilon=report.epsilon, grid=grid)

    def _is_met(self, epsilon: float, name: str) -> bool:
        close = name == "rdp" or epsilon >= self._eps - TOLERANCE
        return epsilon <= self._eps and close


PATIENCE = 5.0
"""Seconds for the end of a calibration whose accountants were ended."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a calibration is asked for."""

    eps: float
    delta: float
    sample_rate: float
    steps: int
    accountant: str


class EarlyCalibration:
    """A context manager that calibrates in a thread, and answers when it is called.

    Called for another target than the one it began with, it calibrates for that one: what it
    returns or raises is always what ``calibrate_noise_multiplier`` does.
    """

    def __init__(self, target: Target | None) -> None:
        """Prepares; nothing runs before it is entered.

        Args:
            target: What to begin with; None: only the accountants' libraries are imported.
        """
        self._target = target
        self._accountants = Accountants()
        self._answer: tuple[float, Calibration] | DpftError | None = None
        self._thread = Thread(target=self._compute, name="calibration", daemon=True)
        self._closed = False

    def __enter__(self) -> "EarlyCalibration":
        self._accountants.start()
        if self._target is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def __call__(
        self, *, eps: float, delta: float, sample_rate: float, steps: int, accountant: str
    ) -> tuple[float, Calibration]:
        """Returns what ``calibrate_noise_multiplier`` does, and ends the accountants."""
        target = Target(
            eps=eps, delta=delta, sample_rate=sample_rate, steps=steps, accountant=accountant
        )
        if self._target is not None:
            self._thread.join()
        try:
            if target == self._target and self._answer is not None:
                return _given(self._answer)
            if self._closed:
                return calibrate_noise_multiplier(**asdict(target))
            return calibrate_noise_multiplier(**asdict(target), accountants=self._accountants)
        finally:
            self._close()

    def _compute(self) -> None:
        assert self._target is not None
        try:
            self._answer = calibrate_noise_multiplier(
                **asdict(self._target), accountants=self._accountants
            )
        except DpftError as error:
            self._answer = error
        except OSError:
            return  # no process could be started; whoever calls tries again, and is told

    def _close(self) -> None:
        """Ends the accountants, in the middle of an answer too."""
        if self._closed:
            return
        self._closed = True
        patience = time.monotonic() + PATIENCE
        while self._thread.is_alive() and time.monotonic() < patience:
            self._accountants.abandon()  # again, since one may just have been started
            self._thread.join(0.05)
        if not self._thread.is_alive():
            self._accountants.__exit__(None, None, None)


def _given(answer: tuple[float, Calibration] | DpftError) -> tuple[float, Calibration]:
    if isinstance(answer, DpftError):
        raise answer
    return answer
