"""Epsilon as a function of the number of steps taken.

The curve follows from the plan alone, so that it is public, and the same for a resumed run. It is
computed when the run starts, which takes seconds at most, since PRV is asked on one mesh for all
numbers of steps (``epsilon_curve``). ``epsilon_over_steps`` asks on a mesh for each number of
steps, for tables and plots.

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
"""Most numbers of steps that a run's curve has."""


@dataclass(frozen=True, kw_only=True)
class SpentEpsilon:
    """An upper bound of what a number of noisy steps has spent."""

    epsilon: float
    accountant: str
    """Whose bound it is."""


class EpsilonCurve(StrictModel):
    """Upper bounds of epsilon after some numbers of steps, none lower than the one before.

    Guarantees:
        ``after(n)`` is at least the epsilon of the first n steps: it is the bound of the next
        number of steps on the curve, which has all of them among its own. No line is drawn between
        two points: epsilon bends downwards, so that a line would lie below it.
    """

    steps: tuple[AtLeastOne, ...]
    """Numbers of steps, at most 40."""
    epsilons: tuple[NotNegative, ...]
    """The bound after each."""
    accountants: tuple[str, ...]
    """Whose bound each is."""

    def _check_fields(self) -> None:
        if not len(self.steps) == len(self.epsilons) == len(self.accountants):
            raise ValueError("steps, epsilons and accountants must be as many")

    def after(self, steps: int) -> SpentEpsilon | None:
        """Return the bound of ``steps`` steps; None beyond the curve's last."""
        place = bisect_left(self.steps, steps)
        if place == len(self.steps):
            return None
        return SpentEpsilon(epsilon=self.epsilons[place], accountant=self.accountants[place])


def curve_grid(steps: int) -> list[int]:
    """Return at most ``POINTS`` numbers of steps, from 1 to ``steps``, the closer the fewer.

    Epsilon grows about as their square root, so that squares are evenly spaced in epsilon.

    >>> curve_grid(3), curve_grid(410)[:6], curve_grid(410)[-2:]
    ([1, 2, 3], [1, 2, 3, 5, 7, 10], [390, 410])
    """
    if steps <= POINTS:
        return list(range(1, steps + 1))
    parts = POINTS - 1
    return sorted({1, *(-(-steps * part**2 // parts**2) for part in range(1, parts + 1))})


def epsilon_curve(mechanism: SampledGaussian, accountant: str) -> EpsilonCurve:
    """Return the curve of a mechanism over its steps.

    Numbers of steps that no accountant bounds are left out.

    Args:
        mechanism: All of its steps.
        accountant: Whose upper bound leads; of "rdp" no other accountant is asked.
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
    """Return the curve through growing numbers of steps, the bound of each, and whose it is.

    A lower bound of more steps bounds fewer, too. Points without a finite bound are left out.
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
    """An upper bound of epsilon after any number of a plan's steps, or of more than planned.

    Guarantees:
        It is never below the epsilon of so many steps: it is that of the curve, else RDP's bound,
        or the bound of the whole plan, which covers its every prefix, if that is lower.
    """

    def __init__(self, plan: PrivacyPlan, curve: EpsilonCurve) -> None:
        """Prepare for a plan.

        Args:
            plan: The mechanism, and if it was calibrated, the bound of all of its steps.
            curve: The plan's.
        """
        self._plan, self._curve = plan, curve

    def __call__(self, steps: int) -> SpentEpsilon:
        """Return the bound after ``steps`` steps; 0 before the first."""
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
    """Return RDP's bound, infinite where it has none."""
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
        accountant: Its name.
        reason: Why, in a sentence.
        steps: At which numbers of steps.
    """

    accountant: str
    reason: str
    steps: tuple[int, ...]


def epsilon_over_steps(
    mechanism: SampledGaussian,
    *,
    accountant: str,
) -> list[AccountingReport]:
    """Return the accounting after each number of steps of ``step_grid``, ascending.

    Args:
        mechanism: All of its steps.
        accountant: Whose upper bound should lead.

    Raises:
        InputError: No accountant can bound even the first of them.
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
    """Return 1 and the whole numbers nearest above even parts of ``steps``.

    >>> step_grid(3), step_grid(410)[:4], step_grid(410)[-1]
    ([1, 2, 3], [1, 26, 52, 77], 410)
    """
    return sorted({1, *(-(-steps * point // SWEEP_POINTS) for point in range(1, SWEEP_POINTS + 1))})


def failures(reports: Iterable[AccountingReport]) -> list[Failure]:
    """Return which accountants gave no bound at which of the points, and why.

    Numbers in a reason that grow with the steps are those of the first of them.
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
