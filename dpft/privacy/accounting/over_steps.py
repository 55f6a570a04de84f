"""Epsilon after growing numbers of steps of one mechanism, by every accountant.

For a plot and a table; ``curve.EpsilonSoFar`` is the cheap bound that a run shows as it goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dpft.errors import InputError, RunError
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport, account

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
    mechanism: SampledGaussian, *, accountant: str, accountants: Accountants
) -> list[AccountingReport]:
    """Returns the accounting after each of at most ``POINTS`` + 1 numbers of steps, ascending.

    The first point is one step and the last is all of them.

    Args:
        mechanism: All of its steps.
        accountant: Whose upper bound should lead.
        accountants: Running accountants.

    Raises:
        InputError: No accountant can bound even one step.
        RunError: None bounded it, and one of them timed out.
    """
    reports = []
    for steps in step_grid(mechanism.steps):
        try:
            point = replace(mechanism, steps=steps)
            reports.append(account(point, accountant=accountant, accountants=accountants))
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
            if isinstance(answer, float) or "error" not in answer:
                continue
            first = found.get(name, Failure(accountant=name, reason=str(answer["error"]), steps=()))
            found[name] = replace(first, steps=(*first.steps, report.mechanism.steps))
    return list(found.values())
