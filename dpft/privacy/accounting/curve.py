"""Epsilon as a run goes on: its curve over a plan's steps, and what is said after any of them.

The curve follows from the plan alone, so that it is public, and the same for a run that goes on.
The tight accountants take a second or more for it; until it is there, RDP's bound is.

>>> curve = EpsilonCurve(steps=(1, 10, 20), epsilons=(0.5, 1.5, 2.0), accountants=("prv",) * 3)
>>> curve.after(10), curve.after(11)
(SpentEpsilon(epsilon=1.5, accountant='prv', settled=True), \
SpentEpsilon(epsilon=2.0, accountant='prv', settled=True))
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport
from dpft.privacy.plan import PrivacyPlan

POINTS = 40
"""Most numbers of steps that a run's curve has."""


@dataclass(frozen=True, kw_only=True)
class SpentEpsilon:
    """An upper bound of what a number of noisy steps has spent."""

    epsilon: float
    accountant: str
    """Whose bound it is."""
    settled: bool = True
    """Whether it is what will be said of so many steps from now on; False while a tighter bound
    is still being computed."""


@dataclass(frozen=True, kw_only=True)
class EpsilonCurve:
    """Upper bounds of epsilon after some numbers of steps, none lower than the one before.

    Guarantees:
        ``after(n)`` is at least the epsilon of the first n steps: it is the bound of the next
        number of steps on the curve, which has all of them among its own. No line is drawn between
        two points: epsilon bends downwards, so that a line would lie below it.
    """

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    accountants: tuple[str, ...]
    """Whose bound each is."""

    def after(self, steps: int) -> SpentEpsilon | None:
        """Returns the bound of ``steps`` steps; None beyond the curve's last."""
        place = bisect_left(self.steps, steps)
        if place == len(self.steps):
            return None
        return SpentEpsilon(epsilon=self.epsilons[place], accountant=self.accountants[place])


def curve_grid(steps: int) -> list[int]:
    """Returns at most ``POINTS`` numbers of steps, from 1 to ``steps``, the closer the fewer.

    Epsilon grows about as their square root, so that squares are evenly spaced in epsilon.

    >>> curve_grid(3), curve_grid(410)[:6], curve_grid(410)[-2:]
    ([1, 2, 3], [1, 2, 3, 5, 7, 10], [390, 410])
    """
    if steps <= POINTS:
        return list(range(1, steps + 1))
    parts = POINTS - 1
    return sorted({1, *(-(-steps * part**2 // parts**2) for part in range(1, parts + 1))})


def curve_of(reports: Sequence[AccountingReport]) -> EpsilonCurve:
    """Returns the curve through the headlines of accountings of growing numbers of steps.

    A lower bound of more steps bounds fewer, too.
    """
    lowest = math.inf
    points: list[tuple[int, float, str]] = []
    for report in reversed(reports):
        if report.epsilon < lowest:
            lowest, leader = report.epsilon, report.accountant
        points.append((report.mechanism.steps, lowest, leader))
    steps, epsilons, accountants = zip(*reversed(points), strict=True) if points else ((),) * 3
    return EpsilonCurve(steps=steps, epsilons=epsilons, accountants=accountants)


def rdp_curve(mechanism: SampledGaussian) -> EpsilonCurve:
    """Returns the curve by RDP, of the numbers of steps that it can bound."""
    grid = curve_grid(mechanism.steps)
    bounds = [_rdp_bound(replace(mechanism, steps=steps)) for steps in grid]
    points = [point for point in zip(grid, bounds, strict=True) if math.isfinite(point[1])]
    return EpsilonCurve(
        steps=tuple(steps for steps, _ in points),
        epsilons=tuple(bound for _, bound in points),
        accountants=("rdp",) * len(points),
    )


class EpsilonSoFar:
    """An upper bound of epsilon after any number of a plan's steps, or of more than planned.

    Guarantees:
        It is never below the epsilon of so many steps: it is that of the curve, else RDP's bound,
        or the bound of the whole plan, which covers its every prefix, if that is lower.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        find_curve: Callable[[], EpsilonCurve | None] = lambda: None,
        *,
        by_rdp: bool = False,
    ) -> None:
        """Prepares for a plan.

        Args:
            plan: The mechanism, and if it was calibrated, the bound of all of its steps.
            find_curve: Returns the plan's curve; None as long as it is not there.
            by_rdp: The run's accountant is RDP, and nothing tighter is to come.
        """
        self._plan, self._find_curve, self._by_rdp = plan, find_curve, by_rdp

    def __call__(self, steps: int) -> SpentEpsilon:
        """Returns the bound after ``steps`` steps; 0 before the first."""
        curve = self._find_curve()
        settled = self._by_rdp or curve is not None
        if steps == 0:
            return SpentEpsilon(epsilon=0.0, accountant="rdp", settled=settled)
        found = None if curve is None else curve.after(steps)
        if found is None:
            bound = _rdp_bound(self._plan.event((steps,)))
            found = SpentEpsilon(epsilon=bound, accountant="rdp", settled=settled)
        whole = self._plan.calibration
        if whole is None or steps > self._plan.steps or whole.epsilon >= found.epsilon:
            return found
        return replace(found, epsilon=whole.epsilon, accountant=whole.accountant)


def _rdp_bound(mechanism: SampledGaussian) -> float:
    """Returns RDP's bound, infinite where it has none."""
    try:
        upper = rdp.epsilon(mechanism).upper
    except AccountantError:
        return math.inf
    return math.inf if upper is None else upper
