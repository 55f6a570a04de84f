"""Epsilon after growing numbers of steps of one mechanism, by every accountant.

For a plot and a table, and for what a run shows as it goes on (``curve``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dpft.errors import InputError, RunError
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    AccountantTimeout,
    Epsilon,
    Mechanism,
    SampledGaussian,
)
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.records.costs import NoAnswer

POINTS = 16


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
    return sorted({1, *(-(-steps * point // POINTS) for point in range(1, POINTS + 1))})


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
