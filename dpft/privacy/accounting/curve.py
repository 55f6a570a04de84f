"""Epsilon as a run goes on: its curve over a plan's steps, and what is said after any of them.

The curve follows from the plan alone, so that it is public, and the same for a resumed run. The
tight accountants take a second or more for it; until it is there, RDP's bound is. They are asked
beside the run: their processes run at a lower priority than the training, and a thread that mostly
waits collects their answers, so that neither the first steps nor the first line wait
(``CurveInBackground``). ``epsilon_over_steps`` gives plots and tables the same numbers.

>>> curve = EpsilonCurve(steps=(1, 10, 20), epsilons=(0.5, 1.5, 2.0), accountants=("prv",) * 3)
>>> curve.after(10), curve.after(11)
(SpentEpsilon(epsilon=1.5, accountant='prv', settled=True), \
SpentEpsilon(epsilon=2.0, accountant='prv', settled=True))
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Self

from dpft.errors import InputError, RunError
from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.accountants import Accountants, Limits
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    AccountantTimeout,
    Epsilon,
    Mechanism,
    SampledGaussian,
)
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.privacy.plan import PrivacyPlan
from dpft.records.costs import NoAnswer

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
            bound = _rdp_bound(self._plan.cost((steps,)))
            found = SpentEpsilon(epsilon=bound, accountant="rdp", settled=settled)
        whole = self._plan.calibration
        if whole is None or steps > self._plan.steps or whole.epsilon >= found.epsilon:
            return found
        return replace(found, epsilon=whole.epsilon, accountant=whole.accountant)


def _rdp_bound(mechanism: Mechanism) -> float:
    """Returns RDP's bound, infinite where it has none."""
    try:
        upper = rdp.epsilon(mechanism).upper
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
    accountants: Accountants,
    grid: Iterable[int] | None = None,
    one_mesh: bool = False,
    goes_on: Callable[[], bool] = lambda: True,
) -> list[AccountingReport]:
    """Returns the accounting after each of some numbers of steps, ascending.

    Args:
        mechanism: All of its steps.
        accountant: Whose upper bound should lead.
        accountants: Running accountants.
        grid: The numbers of steps, ascending; None: those of ``step_grid``.
        one_mesh: Whether PRV is asked on the mesh of all the steps alone, many times as fast; where
            that is not feasible it gives no bound of fewer steps either.
        goes_on: Asked before each of them whether the answer is still wanted.

    Raises:
        InputError: No accountant can bound even the first of them.
        RunError: None bounded it, and one of them timed out.
    """
    reports: list[AccountingReport] = []
    running = _OneMechanism(accountants, mechanism.steps if one_mesh else None)
    for steps in step_grid(mechanism.steps) if grid is None else grid:
        if not goes_on():
            break
        try:
            point = replace(mechanism, steps=steps)
            reports.append(account(point, accountant=accountant, accountants=running))
        except (InputError, RunError):
            if not reports:
                raise
    return reports


def step_grid(steps: int) -> list[int]:
    """Returns 1 and the whole numbers nearest above even parts of ``steps``.

    >>> step_grid(3), step_grid(410)[:4], step_grid(410)[-1]
    ([1, 2, 3], [1, 26, 52, 77], 410)
    """
    return sorted({1, *(-(-steps * point // SWEEP_POINTS) for point in range(1, SWEEP_POINTS + 1))})


def failures(reports: Iterable[AccountingReport]) -> list[Failure]:
    """Returns which accountants gave no bound at which of the points, and why.

    Numbers in a reason that grow with the steps are those of the first of them.
    """
    found: dict[str, Failure] = {}
    for report in reports:
        for name, answer in report.epsilons.items():
            if not isinstance(answer, NoAnswer):
                continue
            first = found.get(name, Failure(accountant=name, reason=answer.error, steps=()))
            found[name] = replace(first, steps=(*first.steps, report.mechanism.steps))
    return list(found.values())


class _OneMechanism:
    """Accountants that are asked about many numbers of steps of one mechanism.

    One that timed out is not asked again, since it would take its whole time at every point; nor
    is PRV where the mesh that all the points share is not feasible.
    """

    def __init__(self, accountants: Accountants, longest: int | None) -> None:
        self._accountants, self._longest = accountants, longest
        self._given_up: dict[str, AccountantError] = {}

    def prefetch(self, name: str, mechanism: SampledGaussian) -> None:
        """See ``Accountants``."""
        if name not in self._given_up:
            self._accountants.prefetch(name, mechanism, **self._mesh(name, mechanism))

    def evaluate(self, name: str, mechanism: Mechanism, **options: float) -> Epsilon:
        """See ``Accountants``."""
        if name in self._given_up:
            raise self._given_up[name]
        mesh = self._mesh(name, mechanism)
        try:
            return self._accountants.evaluate(name, mechanism, **mesh, **options)
        except AccountantError as error:
            if mesh or isinstance(error, AccountantTimeout):
                self._given_up[name] = error
            raise

    def _mesh(self, name: str, mechanism: Mechanism) -> dict[str, float]:
        """Returns of which steps the mesh is; nothing where they are the mechanism's own."""
        if name != "prv" or self._longest is None or mechanism.steps == self._longest:
            return {}
        return {"longest": self._longest}


NICENESS = 10
"""A tenth of a processor where the training takes all of it: a curve of five seconds is there
within a minute, and would take many at 19."""
PATIENCE = 5.0
"""Seconds that the end of a run which broke off waits for an answer under way."""


class CurveInBackground:
    """A context manager that computes one mechanism's curve while its block runs.

        with CurveInBackground(plan.event(), accountant="prv") as background:
            ...  # background.curve is None at first
            curve = background.wait()

    Attributes:
        failures: Which accountants gave no bound at which points; known once the curve is there.
    """

    def __init__(
        self,
        mechanism: SampledGaussian,
        accountant: str,
        *,
        steps_within: Callable[[int], int] = lambda steps: steps,
    ) -> None:
        """Prepares for a mechanism.

        Args:
            mechanism: All of its steps.
            accountant: Whose upper bound leads; by "rdp" nothing runs beside the block.
            steps_within: From a number of the mechanism's steps to the run's that they bound.
        """
        self._mechanism, self.accountant = mechanism, accountant
        self._steps_within = steps_within
        self.failures: list[Failure] = []
        self._curve: EpsilonCurve | None = None
        self._reports: Sequence[AccountingReport] = ()
        self._ended = Event()
        self._thread = Thread(target=self._compute, name="epsilon over steps", daemon=True)

    def __enter__(self) -> Self:
        if self.accountant != "rdp":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)

    @property
    def curve(self) -> EpsilonCurve | None:
        """The curve, or None as long as it is not there."""
        return self._curve

    def wait(self) -> EpsilonCurve:
        """Returns the curve once it is there; RDP's where no other accountant gave one."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._curve is None:
            self._curve = self._of_run(rdp_curve(self._mechanism))
        return self._curve

    def report(self, mechanism: SampledGaussian, accountant: str) -> AccountingReport | None:
        """Returns ``account``'s report of a mechanism led by ``accountant``, if it is known.

        That of all the steps is, once the curve is there, if every accountant answered: one that
        runs beside training may run out of its time.
        """
        for report in self._reports:
            answered = not any(isinstance(each, NoAnswer) for each in report.epsilons.values())
            if answered and (accountant, mechanism) == (self.accountant, report.mechanism):
                return report
        return None

    def _compute(self) -> None:
        with Accountants(Limits(niceness=NICENESS)) as accountants:
            try:
                reports = epsilon_over_steps(
                    self._mechanism,
                    accountant=self.accountant,
                    accountants=accountants,
                    grid=curve_grid(self._mechanism.steps),
                    one_mesh=True,
                    goes_on=lambda: not self._ended.is_set(),
                )
            except (InputError, RunError):
                return  # no bound of a single step: the run's own accounting says why
        if not self._ended.is_set():
            self._reports, self.failures = reports[-1:], failures(reports)
            self._curve = self._of_run(curve_of(reports))

    def _of_run(self, curve: EpsilonCurve) -> EpsilonCurve:
        return replace(curve, steps=tuple(map(self._steps_within, curve.steps)))
