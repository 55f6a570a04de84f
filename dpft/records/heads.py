"""Heads of a ledger that were handed to a witness: one line of them, and witness.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dpft.records.form import keys_of, parse
from dpft.records.values import AtLeastOne, Count, Digest, RunId, Versioned


@dataclass(frozen=True, kw_only=True)
class WitnessLine:
    """What is handed to a witness: appended to its file, or given to its program."""

    run: RunId
    """The run's random name at its witnesses: the run_id of its ledger's first line."""
    lines: AtLeastOne
    """Lines of the ledger."""
    head: Digest
    """SHA-256 of the last line, 64 hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class HandedCounts:
    """What a witness was handed."""

    heads: Count = 0
    """Heads that it took."""
    failed: Count = 0
    """Heads that it did not take."""
    lines: Count = 0
    """Lines of the ledger at the last head that it took."""


@dataclass(frozen=True, kw_only=True)
class Handed:
    """Which heads of the ledger were handed to a witness."""

    run: RunId
    """The run's random name at its witnesses: the run_id of its ledger's first line."""
    witnesses: Mapping[str, HandedCounts]
    """Each witness by its name, such as file heads.jsonl."""


@dataclass(frozen=True, kw_only=True)
class HandedFile(Handed, Versioned):
    """Which heads of the ledger were handed to a witness."""


def heads_of(run: str, text: str) -> list[WitnessLine]:
    """Returns the lines of a witness's file that are of a run; one that broke off is none.

    Keys that a witness adds, such as a time, are left out.

    Raises:
        Misfit: A whole line of the run has no lines and head as dpft hands them over.
    """
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry.get("run") == run:
            known = {key.name for key in keys_of(WitnessLine)} & set(entry)
            found.append(parse({name: entry[name] for name in known}, WitnessLine))
    return found
