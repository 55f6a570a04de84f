"""Whether a run's ledger is whole: it is held against what else knows how far the run came.

The ledger's chain of hashes proves the order of its lines and not that none is missing at its end:
the first five lines of a ledger of seven are a ledger of five. What knows better stands beside it
in ``private/``: the journal, which has each step a moment before the ledger, and the checkpoints,
which name the number of lines and the head they were written after. Every reader of a run's folder
reads the ledger by ``read_run_ledger``, so that none takes a cut one for whole.

Worked example: a run broke off after step 7, and its ledger was cut to 5 lines. The journal knows
of 7 steps. A crash between the two files explains a journal that is one step ahead; two steps it
does not explain, and the ledger is refused. Had it been cut to 6 lines, the seventh step would be
counted all the same, as one whose line a crash prevented.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpft.errors import StateError
from dpft.files import CHECKPOINT_STATES, HANDED_HEADS, JOURNAL, LEDGER, read_file, read_json
from dpft.privacy.ledger import GENESIS, LedgerRecord, first_line, hash_of, read_ledger
from dpft.privacy.witness import read_handed

NO_STEPS = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)


def read_run_ledger(folder: Path) -> LedgerRecord | None:
    """Returns the ledger of a run's folder, once everything in ``private/`` agrees with it.

    A run may be going on meanwhile: what follows the ledger is read before it.

    Args:
        folder: The run's; ``private/`` need not be in it.

    Returns:
        What the ledger says, a step that only the journal has included in ``counted_steps``; None
        where there is none and nothing knows of one.

    Raises:
        InputError: A file is of another schema version.
        StateError: The ledger is damaged, or was cut, replaced or removed; or the journal was.
    """
    path = folder / LEDGER
    lodged = list(_lodged_in_checkpoints(folder))
    journaled = _journaled_steps(folder)
    ledger = read_ledger(path) if path.exists() else None
    for checkpoint, known in lodged:
        if not _broke_off_before_its_first_line(ledger, known):
            check_lodged(path, ledger, known["ledger"], by=checkpoint)
    _check_witness(folder, ledger)
    if not knows_the_end(folder):
        return ledger
    record = ledger or NO_STEPS
    _check_journal(folder, record, journaled)
    return ledger and replace(ledger, journaled_step=journaled > ledger.steps)


def knows_the_end(folder: Path) -> bool:
    """Returns whether ``private/`` knows how many steps the run has taken."""
    return bool((folder / JOURNAL).exists() or list(folder.glob(CHECKPOINT_STATES)))


def read_journal(path: Path) -> dict[int, dict[str, Any]]:
    """Returns each step's last entry, by its number; none where there is no such file.

    A line that broke off, which no ledger line followed, is left out; its step comes next. A step
    stands twice where a crash came between its entry and its ledger line.

    Raises:
        StateError: A step is missing or out of order, a line is whole and no step's, or it is all
            a folder.
    """
    entries: dict[int, dict[str, Any]] = {}
    if not path.exists():
        return entries
    last = 0
    for number, line in enumerate(read_file(path).split(b"\n"), start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        except RecursionError:
            entry = None
        step = entry.get("step") if isinstance(entry, dict) else None
        if type(step) is not int:
            raise StateError(
                f"{path}, line {number}: expected one JSON object with a step, a whole number, got"
                " a damaged line. Put it back as it was."
            )
        if step != last + 1 and (step != last or last == 0):
            raise StateError(
                f"{path}, line {number}: expected step {last + 1} of the journal, got {step}; it"
                " was edited, reordered or cut. Put it back as it was."
            )
        entries[step], last = entry, step
    return entries


def check_lodged(
    path: Path,
    ledger: LedgerRecord | None,
    lodged: Mapping[str, Any],
    *,
    by: str,
    whole: bool = False,
) -> None:
    """Refuses a ledger that is not the one of which lines and head were written down, gone on with.

    Args:
        path: The ledger.
        ledger: What it says; None: it is gone.
        lodged: Its ``lines`` and ``head`` as they were then.
        by: What says so, for the message.
        whole: Whether the ledger ended there, as it does in privacy.json.

    Raises:
        StateError: It is another one, or was cut or added to.
    """
    try:
        lines, head = int(lodged["lines"]), str(lodged["head"])
        if lines < 0:
            raise ValueError("lines are counted from 0")
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{by} is damaged: it names no lines and head of the ledger; put it back as it was."
        ) from error
    found = ledger or NO_STEPS
    if ledger is None or found.lines < lines or (whole and found.lines > lines):
        got = "none" if ledger is None else found.lines
        raise StateError(
            f"{path}, line {min(found.lines, lines) + 1}: the ledger must have {lines} lines, as"
            f" was written down in {by}, got {got}; it was cut or added to. Put it"
            " back as it was."
        )
    if found.heads[lines] != head:
        raise StateError(
            f"{path}, line {lines}: the ledger's head must be {head}, as was written down in {by},"
            f" got {found.heads[lines]}; it was replaced, edited or written anew. Put it back as it"
            " was."
        )


def _check_journal(folder: Path, ledger: LedgerRecord, journaled: int) -> None:
    """Refuses a ledger and a journal of which one lacks steps that the other has.

    Args:
        folder: The run's.
        ledger: What its ledger says.
        journaled: Steps of the journal, as they were before the ledger was read.
    """
    path, journal = folder / LEDGER, folder / JOURNAL
    # The journal is a step ahead for a moment in each step, and never once the run has ended.
    explained = 0 if ledger.closed else 1
    if journaled > ledger.steps + explained:
        line = ledger.line_of(ledger.steps + 1)
        raise StateError(
            f"{path}, line {line}: {journal} has {journaled} noisy steps and the ledger"
            f" {ledger.steps}, of which a crash explains {explained} at most; the ledger was cut."
            " Put it back as it was: the steps that it lacks are spent."
        )
    if ledger.steps > journaled and ledger.steps > _journaled_steps(folder):
        raise StateError(
            f"{journal} must have each of the {ledger.steps} noisy steps of {path}, got"
            f" {journaled}; it was cut or removed, or the ledger added to. Put it back as it was."
        )


def _lodged_in_checkpoints(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each checkpoint's path, and what it says of a run that has a ledger."""
    for path in sorted(folder.glob(CHECKPOINT_STATES)):
        try:
            run = read_json(path).get("run")
        except FileNotFoundError:  # A run that goes on has dropped it for a newer one.
            continue
        if isinstance(run, dict) and run.get("ledger") is not None:
            yield str(path), run


def _broke_off_before_its_first_line(ledger: LedgerRecord | None, known: Mapping[str, Any]) -> bool:
    """Returns whether a ledger has no whole line since it was to get the first with a step.

    The checkpoint of step 0, which is complete before, has that line's head. Had a step been taken,
    the journal would have it.
    """
    run_id, plan = known.get("run_id"), known.get("plan")
    if ledger is None or ledger.lines or not isinstance(run_id, str) or not isinstance(plan, dict):
        return False
    head = hash_of(first_line(run_id, plan))
    return bool(known["ledger"] == {"lines": 1, "head": head, "position": 0})


def _check_witness(folder: Path, ledger: LedgerRecord | None) -> None:
    """Refuses a run with another name in witness.json than its ledger has."""
    handed = read_handed(folder)
    name = None if ledger is None else ledger.run_id
    if name is not None and handed is not None and handed.run != name:
        raise StateError(
            f"{folder / HANDED_HEADS} must name the run {name}, as its {LEDGER} does, got"
            f" {handed.run}. Put it back as it was."
        )


def _journaled_steps(folder: Path) -> int:
    return max(read_journal(folder / JOURNAL), default=0)
