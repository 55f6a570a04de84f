"""One check of ``dpft doctor``, and the table and the JSON of all of them.

What is essential is what every ``dpft train`` needs: Python and the required packages in their
ranges, a torch that computes, and an outputs/ that can be written. Without one of them the doctor
exits with 1. All else costs something that is named, and training goes on without it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpft.files import SCHEMA_VERSION

OK, WARNING, MISSING = "ok", "warning", "missing"


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found, and what a missing thing costs."""

    what: str
    state: str
    """ok, warning or missing."""
    found: str
    """In words: a version, a number of GiB."""
    cost: str | None = None
    """What does not work, or works worse; None where all is well."""
    remedy: str | None = None
    """How to get it."""
    essential: bool = False
    """Whether dpft cannot train while it is missing."""


def can_train(checks: Sequence[Check]) -> bool:
    """Returns whether nothing essential is missing."""
    return not any(check.essential and check.state == MISSING for check in checks)


def doctor_record(checks: Sequence[Check]) -> dict[str, Any]:
    """Returns what ``dpft doctor output=json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "can_train": can_train(checks),
        "checks": [asdict(check) for check in checks],
    }


def doctor_table(checks: Sequence[Check]) -> str:
    """Returns the checks as lines of text, the cost and the way out below what is missing."""
    width = max(len(check.what) for check in checks)
    lines = [line for check in checks for line in _lines(check, width)]
    bad = [check.what for check in checks if check.essential and check.state == MISSING]
    last = f"dpft cannot train here: {', '.join(bad)}." if bad else "dpft can train here."
    return "\n".join([*lines, "", last])


def _lines(check: Check, width: int) -> list[str]:
    indent = " " * (len(MISSING) + width + 4)
    lines = [f"{check.state:<{len(MISSING)}}  {check.what:<{width}}  {check.found}"]
    if check.cost is not None:
        lines.append(f"{indent}costs: {check.cost}")
    if check.remedy is not None:
        lines.append(f"{indent}mend:  {check.remedy}")
    return lines
