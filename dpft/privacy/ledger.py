"""The record of noisy steps: append-only, synced to disk, each line naming the one before.

A line is written before the weights move, so a crash can over-count a step and never miss one.
It holds no time, batch size or data: only what the accountant needs. The chain of hashes shows
accidental edits, and says nothing of lines cut from the end (see ``completeness``, by which a run's
folder is read); whoever owns the file could rewrite all of it, so the head is to be lodged
elsewhere (see ``witness``).
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dpft.errors import InputError, StateError
from dpft.files import check_version, read_file, sync_folder
from dpft.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
    from dpft.privacy.step_log import Released

GENESIS = "0" * 64
CLOSING = '{"closed"'
"""How the closing line begins, and no other."""


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """What a ledger file says.

    Attributes:
        steps: Noisy steps taken.
        mechanisms: The mechanism of each step.
        closed: Whether the run ended as planned.
        lines: Whole lines in the file, the closing one included.
        head: Hash of the last of them.
        heads: Head after each number of lines, that of none among them.
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
    torn_at: int | None = None
    torn_step: bool = False
    journaled_step: bool = False

    @property
    def counted_steps(self) -> int:
        """Noisy steps to account for: those taken, and one whose line is torn or only journaled."""
        return self.steps + (self.torn_step or self.journaled_step)


class Ledger:
    """Appends one line per noisy step."""

    def __init__(self, path: Path) -> None:
        """Starts a new ledger.

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
        self._begin(
            descriptor, LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)
        )
        sync_folder(path.parent)

    @classmethod
    def reopen(cls, path: Path, record: LedgerRecord) -> Self:
        """Returns the ledger of a run that broke off, to go on after its last whole line.

        A torn line stays until the next one is written in its place.

        Args:
            path: The file.
            record: What ``read_ledger`` says of it; not closed.
        """
        if record.closed:
            raise ValueError("a closed ledger must stay as it is.")
        ledger = cls.__new__(cls)
        ledger._begin(os.open(path, os.O_WRONLY | os.O_APPEND), record)
        return ledger

    def _begin(self, descriptor: int, record: LedgerRecord) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")
        self.lines, self.head, self.steps = record.lines, record.head, record.steps
        self._torn_at = record.torn_at

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
        line = json.dumps({**entry, "previous": self.head}, sort_keys=True)
        if self._torn_at is not None:
            os.ftruncate(self._file.fileno(), self._torn_at)
            self._torn_at = None
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.head = _hash(line)
        self.lines += 1


def read_ledger(path: Path) -> LedgerRecord:
    """Returns what a ledger says, after checking its chain.

    Raises:
        InputError: It is of another schema version.
        StateError: A line is damaged, missing, out of order or follows the closing one; named by
            number; or it is a folder.
    """
    head, closed = GENESIS, False
    heads, mechanisms = [GENESIS], list[Mapping[str, Any]]()
    # Bytes that are no text make a line that is no JSON, which is refused by its number.
    content = read_file(path)
    *lines, torn = content.decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        entry = _parse(line, path, number)
        expected_step = len(mechanisms) + 1
        in_order = entry.get("closed") is True or entry.get("step") == expected_step
        if entry.get("previous") != head or not in_order or closed:
            raise StateError(
                f"{path}, line {number}: the ledger is broken here (expected step "
                f"{expected_step} after the line before); it was edited, reordered or cut."
                " Put the ledger back as it was."
            )
        closed = entry.get("closed") is True
        if not closed:
            mechanisms.append(_mechanism(entry, path, number))
        head = _hash(line)
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
        torn_at=content.rfind(b"\n") + 1 if torn else None,
        torn_step=bool(torn) and not torn.startswith(CLOSING),
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


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
