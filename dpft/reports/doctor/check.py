"""The table and the JSON of all checks of ``dpft doctor``.

What is essential is what every ``dpft train`` needs: Python and the required packages in their
ranges, a torch that computes, and an outputs/ that can be written. Without one of them the doctor
exits with 1. All else costs something that is named, and training goes on without it.
"""

from collections.abc import Sequence
from typing import Final

from dpft.records.machine import Check, Doctor
from dpft.reports.terminal import Grid

OK: Final = "ok"
WARNING: Final = "warning"
MISSING: Final = "missing"


def can_train(checks: Sequence[Check]) -> bool:
    """Returns whether nothing essential is missing."""
    return not any(check.essential and check.state == MISSING for check in checks)


def doctor_record(checks: Sequence[Check]) -> Doctor:
    """Returns what ``dpft doctor output=json`` prints."""
    return Doctor(can_train=can_train(checks), checks=tuple(checks))


def doctor_parts(checks: Sequence[Check]) -> list[Grid | str]:
    """Returns the checks as a table, the cost and the way out below what is missing."""
    rows = [row for check in checks for row in _rows(check)]
    bad = [check.what for check in checks if check.essential and check.state == MISSING]
    last = f"dpft cannot train here: {', '.join(bad)}." if bad else "dpft can train here."
    return [Grid(rows=rows), "", last]


def _rows(check: Check) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = [(check.state, check.what, check.found)]
    if check.cost is not None:
        rows.append(("", "", f"costs: {check.cost}"))
    if check.remedy is not None:
        rows.append(("", "", f"mend:  {check.remedy}"))
    return rows
