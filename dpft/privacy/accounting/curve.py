"""Epsilon as a function of the number of steps taken.

The curve follows from the plan, so it is public, and a resumed run has the same curve. It is
computed when the run starts. This takes at most seconds, because PRV uses one mesh for all numbers
of steps (``epsilon_curve``). ``epsilon_over_steps`` uses a separate mesh for each number of steps,
for tables and plots.

>>> curve = EpsilonCurve(steps=(1, 10, 20), epsilons=(0.5, 1.5, 2.0), accountants=("prv",) * 3)
>>> curve.after(10), curve.after(11)
(SpentEpsilon(epsilon=1.5, accountant='prv'), SpentEpsilon(epsilon=2.0, accountant='prv'))
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dpft.errors import InputError
from dpft.privacy.accounting.accountants import evaluate
from dpft.privacy.accounting.mechanism import AccountantError, Mechanism, SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport, NoAnswer, account
from dpft.privacy.plan import PrivacyPlan
from dpft.strict_model import AtLeastOne, NotNegative, StrictModel

POINTS = 40
"""Maximum number of points on the curve of a run."""


@dataclass(frozen=True, kw_only=True)
class SpentEpsilon:
    """Upper bound on the epsilon that a number of noisy steps has spent."""

    epsilon: float
    accountant: str
    """Accountant of the bound."""


class EpsilonCurve(StrictModel):
    """Upper bounds of epsilon after some numbers of steps, in ascending order.

    Guarantees:
        ``after(n)`` is at least the epsilon of the first n steps. It is the bound of the next
        number of steps on the curve, which includes these n steps. Points are not interpolated:
        epsilon is concave in the number of steps, so a line between two points would be below it.
    """

    steps: tuple[AtLeastOne, ...]
    """Numbers of steps, at most 40."""
    epsilons: tuple[NotNegative, ...]
    """Bound after each number of steps."""
    accountants: tuple[str, ...]
    """Accountant of each bound."""

    def _check_fields(self) -> None:
        if not len(self.steps) == len(self.epsilons) == len(self.accountants):
            raise ValueError("steps, epsilons and accountants must be as many")

    def after(self, steps: int) -> SpentEpsilon | None:
        """Return the bound of ``steps`` steps; None beyond the last point of the curve."""
        place = bisect_left(self.steps, steps)
        if place == len(self.steps):
            return None
        return SpentEpsilon(epsilon=self.epsilons[place], accountant=self.accountants[place])


def curve_grid(steps: int) -> list[int]:
    """Return at most ``POINTS`` numbers of steps from 1 to ``steps``, denser at the beginning.

    Epsilon grows about as the square root of the number of steps, so squares are evenly spaced in
    epsilon.

    >>> curve_grid(3), curve_grid(410)[:6], curve_grid(410)[-2:]
    ([1, 2, 3], [1, 2, 3, 5, 7, 10], [390, 410])
    """
    if steps <= POINTS:
        return list(range(1, steps + 1))
    parts = POINTS - 1
    return sorted({1, *(-(-steps * part**2 // parts**2) for part in range(1, parts + 1))})


def epsilon_curve(mechanism: SampledGaussian, accountant: str) -> EpsilonCurve:
    """Return the curve of a mechanism over its steps.

    Numbers of steps that no accountant bounds are skipped.

    Args:
        mechanism: Mechanism with all steps.
        accountant: Accountant whose upper bound is preferred; for "rdp", no other accountant is
            used.
    """
    points: list[tuple[int, float, str]] = []
    for steps in curve_grid(mechanism.steps):
        part = replace(mechanism, steps=steps)
        if accountant == "rdp":
            points.append((steps, _rdp_bound(part), accountant))
            continue
        with suppress(InputError):
            report = account(part, accountant=accountant, longest=mechanism.steps)
            points.append((steps, report.epsilon, report.accountant))
    return curve_through(points)


def curve_through(points: Sequence[tuple[int, float, str]]) -> EpsilonCurve:
    """Return the curve through points (steps, bound, accountant), in ascending order of steps.

    If a larger number of steps has a smaller bound, this bound also holds for fewer steps and
    replaces theirs. Points without a finite bound are skipped.
    """
    lowest, leader = math.inf, ""
    kept: list[tuple[int, float, str]] = []
    for steps, bound, accountant in reversed(points):
        if bound < lowest:
            lowest, leader = bound, accountant
        if lowest < math.inf:
            kept.append((steps, lowest, leader))
    kept.reverse()
    return EpsilonCurve(
        steps=tuple(steps for steps, _, _ in kept),
        epsilons=tuple(bound for _, bound, _ in kept),
        accountants=tuple(accountant for _, _, accountant in kept),
    )


class EpsilonSoFar:
    """Upper bound of epsilon after any number of steps of a plan, even more steps than planned.

    Guarantees:
        The bound is never below the epsilon of this number of steps. It is taken from the curve,
        or from RDP beyond the end of the curve. If the calibrated bound of the whole plan, which
        also covers fewer steps, is lower, that bound is used.
    """

    def __init__(self, plan: PrivacyPlan, curve: EpsilonCurve) -> None:
        """Prepare for a plan.

        Args:
            plan: The mechanism and, if it was calibrated, the bound of all its steps.
            curve: Curve of the plan.
        """
        self._plan, self._curve = plan, curve

    def __call__(self, steps: int) -> SpentEpsilon:
        """Return the bound after ``steps`` steps; 0 before the first step."""
        if steps == 0:
            return SpentEpsilon(epsilon=0.0, accountant="rdp")
        spent = self._curve.after(steps)
        if spent is None:
            bound = _rdp_bound(self._plan.cost((steps,)))
            spent = SpentEpsilon(epsilon=bound, accountant="rdp")
        whole = self._plan.calibration
        if whole is None or steps > self._plan.steps or whole.epsilon >= spent.epsilon:
            return spent
        return replace(spent, epsilon=whole.epsilon, accountant=whole.accountant)


def _rdp_bound(mechanism: Mechanism) -> float:
    """Return RDP's bound, or infinity if RDP has no bound."""
    try:
        upper = evaluate("rdp", mechanism).upper
    except AccountantError:
        return math.inf
    return math.inf if upper is None else upper


SWEEP_POINTS = 16


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An accountant that gave no bound at some of the points, for one reason.

    Attributes:
        accountant: Name of the accountant.
        reason: Reason, as a sentence.
        steps: Numbers of steps without a bound.
    """

    accountant: str
    reason: str
    steps: tuple[int, ...]


def epsilon_over_steps(
    mechanism: SampledGaussian,
    *,
    accountant: str,
) -> list[AccountingReport]:
    """Return the accounting after each number of steps of ``step_grid``, in ascending order.

    Args:
        mechanism: Mechanism with all steps.
        accountant: Accountant whose upper bound should be the headline.

    Raises:
        InputError: No accountant can bound even the first number of steps.
    """
    reports: list[AccountingReport] = []
    for steps in step_grid(mechanism.steps):
        try:
            reports.append(account(replace(mechanism, steps=steps), accountant=accountant))
        except InputError:
            if not reports:
                raise
    return reports


def step_grid(steps: int) -> list[int]:
    """Return 1 and equal parts of ``steps``, each rounded up to a whole number.

    >>> step_grid(3), step_grid(410)[:4], step_grid(410)[-1]
    ([1, 2, 3], [1, 26, 52, 77], 410)
    """
    return sorted({1, *(-(-steps * point // SWEEP_POINTS) for point in range(1, SWEEP_POINTS + 1))})


def failures(reports: Iterable[AccountingReport]) -> list[Failure]:
    """Return which accountants gave no bound at which points, and the reason.

    A reason quotes numbers, such as the size of a grid, of the first point at which it applies.
    """
    failures_by_name: dict[str, Failure] = {}
    for report in reports:
        for name, answer in report.epsilons.items():
            if not isinstance(answer, NoAnswer):
                continue
            first = failures_by_name.get(
                name, Failure(accountant=name, reason=answer.error, steps=())
            )
            failures_by_name[name] = replace(first, steps=(*first.steps, report.mechanism.steps))
    return list(failures_by_name.values())
