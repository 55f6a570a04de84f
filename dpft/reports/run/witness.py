"""What a report says of a run's witness: who has heads of its ledger, how many, and the last."""

from collections.abc import Mapping
from typing import Any

from dpft.records.form import as_json
from dpft.records.heads import Handed, HandedFile


def with_witness(
    privacy: Mapping[str, Any], handed: HandedFile | None, lines: int
) -> dict[str, Any]:
    """Returns the content of privacy.json, its witness among it.

    Args:
        privacy: The content without it.
        handed: What ``read_handed`` says; None: the run has no witness.
        lines: Of the ledger.
    """
    record = dict(privacy)
    if handed is None:
        return record
    record["witness"] = as_json(Handed(run=handed.run, witnesses=handed.witnesses))
    for name, count in handed.witnesses.items():
        if count.failed or count.lines < lines:
            were = "was" if count.failed == 1 else "were"
            failed = f" and {_heads(count.failed)} {were} not taken" if count.failed else ""
            record["warnings"] = [
                *record["warnings"],
                f"the witness, {name}, has a head of {count.lines} of the ledger's {lines}"
                f" lines{failed}; lodge the head with someone else",
            ]
    return record


def witness_rows(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns each witness in words, quantity and value; none where there was none."""
    known = privacy.get("witness")
    if known is None:
        return []
    lines = privacy["ledger"]["lines"]
    return [
        (
            "witness of the ledger",
            f"{name}: {_heads(count['heads'])}, the last after line {count['lines']} of {lines},"
            f" {count['failed']} not taken; the run's name there is `{known['run']}`",
        )
        for name, count in known["witnesses"].items()
    ]


def _heads(number: int) -> str:
    return f"{number} head{'' if number == 1 else 's'}"
