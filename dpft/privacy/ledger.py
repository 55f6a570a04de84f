"""The record of noisy steps: append-only, synced to disk, each line naming the one before.

The first line names the run by a random number of its own, so that no other run's ledger has its
heads: the lines that follow depend on the plan alone. A step's line is written before the weights
move, so a crash can over-count a step and never miss one. It holds no time, batch size or data:
only what the accountant needs. The chain of hashes shows accidental edits, and says nothing of
lines cut from the end (see ``completeness``, by which a run's folder is read); whoever owns the
file could rewrite all of it, so the head is to be lodged elsewhere (see ``witness``).

Ledgers of dpft 0.2.0 and before begin with the first step. They are read as they are.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dpft.errors import InputError, StateError
from dpft.files import SCHEMA_VERSION, check_version, read_file, sync_folder
from dpft.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
    from dpft.privacy.step_log import Released

GENESIS = "0" * 64
CLOSING = '{"closed"'
"""How the closing line begins, and no other."""
FIRST = '{"previous"'
"""How the first line begins, which names the run, and no other."""


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """What a ledger file says.

    Attributes:
        steps: Noisy steps taken.
        mechanisms: The mechanism of each step.
        closed: Whether the run ended as planned.
        lines: Whole lines in the file, the first and the closing one included.
        head: Hash of the last of them.
        heads: Head after each number of lines, that of none among them.
        run_id: What the first line names the run by; None in a ledger of dpft 0.2.0 or before,
            and where no line is whole.
        torn_at: Where a line begins that was being written when the run broke off, in bytes; None
            where the last line is whole.
        torn_step: Whether that line may be of a step: then the step counts as taken.
        journaled_step: Whether the run's journal has one step more: it counts as taken, too.
    """

    steps: int
    mechanisms: tuple[Mapping[str, Any], ...]
    closed: bool
    lines: int
    head: str
    heads: tuple[str, ...] = (GENESIS,)
    run_id: str | None = None
    torn_at: int | None = None
    torn_step: bool = False
    journaled_step: bool = False

    @property
    def counted_steps(self) -> int:
        """Noisy steps to account for: those taken, and one whose line is torn or only journaled."""
        return self.steps + (self.torn_step or self.journaled_step)

    def line_of(self, step: int) -> int:
        """Returns the number of the line that a step, counted from 1, has or would have."""
        return step if self.run_id is None else step + 1


class Ledger:
    """Appends one line per noisy step, after one that names the run."""

    def __init__(self, path: Path, *, run_id: str | None = None) -> None:
        """Starts a new ledger, whose first line is written with the first step.

        So a checkpoint can hold the first line's head before the file has a line.

        Args:
            path: The file.
            run_id: What names the run, as ``new_run_id`` returns it; None: a new one.

        Raises:
            InputError: There is one already: its run has spent privacy on these records.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise InputError(
                f"{path} exists: the run in this folder has taken noisy steps; "
                "choose another folder with hydra.run.dir=DIR."
            ) from None
        nothing = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)
        self._begin(descriptor, nothing, run_id or new_run_id())
        sync_folder(path.parent)

    @classmethod
    def reopen(cls, path: Path, record: LedgerRecord, *, run_id: str | None = None) -> Self:
        """Returns the ledger of a run that broke off, to go on after its last whole line.

        A torn line stays until the next one is written in its place.

        Args:
            path: The file.
            record: What ``read_ledger`` says of it; not closed.
            run_id: What its first line is to name the run by, where no line is whole.
        """
        if record.closed:
            raise ValueError("a closed ledger must stay as it is.")
        if record.lines == 0 and run_id is None:
            raise ValueError("the run of a ledger without a line must be named.")
        ledger = cls.__new__(cls)
        ledger._begin(os.open(path, os.O_WRONLY | os.O_APPEND), record, record.run_id or run_id)
        return ledger

    def _begin(self, descriptor: int, record: LedgerRecord, run_id: str | None) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")
        self.lines, self.head, self.steps = record.lines, record.head, record.steps
        self.run_id = run_id
        self._torn_at = record.torn_at
        self._unwritten: str | None = None
        if record.lines == 0:
            assert run_id is not None
            self._unwritten = first_line(run_id)
            self.lines, self.head = 1, hash_of(self._unwritten)

    def record_step(self, mechanism: Mapping[str, Any], gradients: "Released") -> None:
        """Records the next step; what its gradients are is not kept here."""
        self.append(self.steps + 1, mechanism)

    def append(self, step: int, mechanism: Mapping[str, Any]) -> None:
        """Records step ``step`` (counted from 1) and waits until it is on disk."""
        self._write({"step": step, "mechanism": dict(mechanism)})
        self.steps = step

    def close(self) -> None:
        """Writes the line that says the run ended as planned."""
        self._write({"closed": True})
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        if self._torn_at is not None:
            os.ftruncate(self._file.fileno(), self._torn_at)
            self._torn_at = None
        if self._unwritten is not None:
            self._append(self._unwritten)
            self._unwritten = None
        line = json.dumps({**entry, "previous": self.head}, sort_keys=True)
        self._append(line)
        self.head = hash_of(line)
        self.lines += 1

    def _append(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def new_run_id() -> str:
    """Returns 128 random bits in hex: public, and derived from no key."""
    return secrets.token_hex(16)


def first_line(run_id: str) -> str:
    """Returns the first line of a run's ledger, without its end of line."""
    names = {"run_id": run_id, "schema_version": SCHEMA_VERSION, "previous": GENESIS}
    return json.dumps(names, sort_keys=True)


def hash_of(line: str) -> str:
    """Returns the SHA-256 of a line without its end, which the next one names."""
    return hashlib.sha256(line.encode()).hexdigest()


def read_ledger(path: Path) -> LedgerRecord:
    """Returns what a ledger says, after checking its chain.

    Raises:
        InputError: It is of another schema version.
        StateError: A line is damaged, missing, out of order or follows the closing one; named by
            number; or it is a folder.
    """
    head, closed, run_id = GENESIS, False, None
    heads, mechanisms = [GENESIS], list[Mapping[str, Any]]()
    # Bytes that are no text make a line that is no JSON, which is refused by its number.
    content = read_file(path)
    *lines, torn = content.decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        entry = _parse(line, path, number)
        if number == 1:
            run_id = _run_id(entry, line, path)
        expected_step = len(mechanisms) + 1
        names_the_run = number == 1 and run_id is not None
        ends = entry.get("closed") is True
        in_order = names_the_run or ends or entry.get("step") == expected_step
        if entry.get("previous") != head or not in_order or closed:
            raise StateError(
                f"{path}, line {number}: the ledger is broken here (expected step "
                f"{expected_step} after the line before); it was edited, reordered or cut."
                " Put the ledger back as it was."
            )
        closed = ends
        if not ends and not names_the_run:
            mechanisms.append(_mechanism(entry, path, number))
        head = hash_of(line)
        heads.append(head)
    if torn and closed:
        raise StateError(
            f"{path}, line {len(lines) + 1}: nothing may follow the closing line; put the ledger"
            " back as it was."
        )
    return LedgerRecord(
        steps=len(mechanisms),
        mechanisms=tuple(mechanisms),
        closed=closed,
        lines=len(lines),
        head=head,
        heads=tuple(heads),
        run_id=run_id,
        torn_at=content.rfind(b"\n") + 1 if torn else None,
        torn_step=bool(torn) and not torn.startswith((CLOSING,) if lines else (CLOSING, FIRST)),
    )


def check_ledger(record: LedgerRecord, plan: PrivacyPlan) -> None:
    """Refuses a ledger that is not that of a finished run of ``plan``.

    Steps that were taken again with new noise after a crash make it longer than the plan.

    Raises:
        StateError: It is not closed, has fewer steps, or another mechanism.
    """
    if not record.closed or record.steps < plan.steps:
        raise StateError(
            f"the ledger must hold {plan.steps} steps and be closed, got {record.steps} steps"
            f"{'' if record.closed else ', not closed'}; it was changed since. Put the ledger back"
            " as it was."
        )
    allowed = [plan.mechanism_at(start) for start in plan.phase_starts()]
    for step, mechanism in enumerate(record.mechanisms):
        if mechanism not in allowed:
            raise StateError(f"the ledger's step {step + 1} is not the plan's mechanism.")


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # A ValueError also of a number of too many digits.
        entry = None
    if not isinstance(entry, dict):
        raise StateError(
            f"{path}, line {number}: expected one JSON object, got a damaged line; put the"
            " ledger back as it was."
        )
    if "schema_version" in entry:  # a line of this form has none
        check_version(entry["schema_version"], path)
    return entry


def _mechanism(entry: Mapping[str, Any], path: Path, number: int) -> Mapping[str, Any]:
    mechanism = entry.get("mechanism")
    if not isinstance(mechanism, dict):
        raise StateError(
            f"{path}, line {number}: the step names no mechanism; it was edited. Put the ledger"
            " back as it was."
        )
    return mechanism


def _run_id(entry: Mapping[str, Any], line: str, path: Path) -> str | None:
    """Returns what the first line names the run by; None where it is a step, as in dpft 0.2.0.

    Raises:
        StateError: It is neither: it was edited, or another line stood before it.
    """
    given = entry.get("run_id")
    if isinstance(given, str) and re.fullmatch("[0-9a-f]{32}", given) and line == first_line(given):
        return given
    if "run_id" in entry or entry.get("previous") != GENESIS:
        raise StateError(
            f"{path}, line 1: the ledger is broken here (expected the line that names the run, and"
            " after which all others come); it was edited, reordered or cut. Put the ledger back as"
            " it was."
        )
    return None
