"""The private journal of steps, which the repeated steps of a resumed run must match.

*The replay log* is ``private/steps.jsonl``. An interrupted run is resumed from a checkpoint and
repeats the steps taken since then. These steps are already in the ledger. They cost nothing more
only if they release exactly the same noisy gradients, because the same noise on a different sum
would reveal the sum. Each step therefore writes a fingerprint of its noisy gradient to the replay
log before the ledger. A repeated step must have the same fingerprint.

*Completeness.* The ledger's chain of hashes proves the order of the lines, but not that no line is
missing at the end: the first five lines of a ledger with seven lines are a valid ledger with five.
Two kinds of files in ``private/`` detect this. The replay log contains each step a moment before
the ledger. Checkpoints contain the number of lines and the head of the ledger at the time of
writing. All readers of a run's folder call ``read_run_ledger``, so that no reader accepts a cut
ledger.

Worked example: a run was interrupted after step 7, and its ledger was cut to 5 steps. The replay
log contains 7 steps. A crash between the two files explains a replay log that is one step ahead,
but not two, so the ledger is rejected. If the ledger had been cut to 6 steps, step 7 would still
count, as a step whose line a crash prevented.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ConfigDict, ValidationError

from dpft.errors import DpftError, SaidElsewhere, StateError
from dpft.parallel.parallel_config import Process
from dpft.privacy.ledger import (
    GENESIS,
    LEDGER_VERSION,
    FirstLine,
    Ledger,
    LedgerRecord,
    Released,
    hash_of,
    read_ledger,
)
from dpft.privacy.mechanisms.base import GaussianStep
from dpft.run_folder import (
    CHECKPOINT_STATES,
    JOURNAL,
    LEDGER,
    read_file,
    read_json,
    sync_folder,
)
from dpft.strict_model import AtLeastOne, Count, StrictModel, parse

if TYPE_CHECKING:
    from torch import Tensor


class StepEntry(StrictModel):
    """A line of private/steps.jsonl, with the fields that a report reads."""

    step: AtLeastOne
    """Number of the step."""
    processes: Process | None = None
    """The processes that took the step; absent if they are those of the previous step."""
    model_config = ConfigDict(extra="allow")

    @property
    def others(self) -> Mapping[str, Any]:
        """The values by which a repeated step is compared with its first execution."""
        return self.model_extra or {}


class KnownLedger(StrictModel):
    """The state of the ledger when a checkpoint was written."""

    lines: Count
    """Number of complete lines."""
    head: str
    """SHA-256 of the last line."""
    position: Count
    """Number of ledger steps that the weights have reached. It exceeds the number of their own
    steps if some steps were repeated with new noise."""


NO_STEPS = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)


class ReplayError(DpftError):
    """Error for a repeated step that differs from its first execution; nothing was released."""


def is_failed_replay(error: DpftError) -> bool:
    """Return whether a repeated step differed from its first execution on any process."""
    kind = error.kind if isinstance(error, SaidElsewhere) else type(error).__name__
    return kind == ReplayError.__name__


@dataclass(frozen=True)
class Anchor:
    """Number of lines and head of a ledger, as another file recorded them.

    Attributes:
        lines: Number of complete lines at that time.
        head: Hash of the last of these lines.
        by: Name of the file that recorded them, for messages.
        before_first_line: Whether no step had been taken. The checkpoint of step 0 contains the
            head of the first line, although this line is written only with the first step.
    """

    lines: int
    head: str
    by: str
    before_first_line: bool = False


def read_run_ledger(folder: Path) -> LedgerRecord | None:
    """Return the ledger of a run's folder, after checking it against all files in ``private/``.

    The run may be in progress. Files that are written after the ledger are therefore read before
    it.

    Args:
        folder: Folder of the run, with or without ``private/``.

    Returns:
        Content of the ledger; ``counted_steps`` includes a step that is only in the replay log.
        None if there is no ledger and no file mentions one.

    Raises:
        InputError: A file has another schema version.
        StateError: The ledger is damaged, or the ledger or the replay log was cut, replaced or
            removed.
    """
    path = folder / LEDGER
    anchors = list(_checkpoint_anchors(folder))
    journaled = _journaled_steps(folder)
    ledger = read_ledger(path) if path.exists() else None
    for anchor in anchors:
        if ledger is None or ledger.lines or not anchor.before_first_line:
            check_anchor(path, ledger, anchor)
    if not knows_the_end(folder):
        return ledger
    _check_journal(folder, ledger or NO_STEPS, journaled)
    return ledger and replace(ledger, journaled_step=journaled > ledger.steps)


def knows_the_end(folder: Path) -> bool:
    """Return whether ``private/`` records how many steps the run has taken."""
    return bool((folder / JOURNAL).exists() or list(folder.glob(CHECKPOINT_STATES)))


def read_journal(path: Path) -> dict[int, dict[str, Any]]:
    """Return the last entry of each step, by step number; empty if there is no such file.

    An incomplete line is skipped: no ledger line followed it, so its step is recorded again. A step
    occurs twice if a crash occurred between its entry and its ledger line.

    Raises:
        StateError: A step is missing or out of order, a complete line does not describe a step, or
            the path is a folder.
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
                f"{path}, line {number}: expected a JSON object with a whole number step, got a"
                " damaged line. Restore the original file."
            )
        if step != last + 1 and (step != last or last == 0):
            raise StateError(
                f"{path}, line {number}: expected step {last + 1} of the journal, got {step}. It"
                " was edited, reordered or cut; restore the original file."
            )
        entries[step], last = entry, step
    return entries


def check_anchor(path: Path, ledger: LedgerRecord | None, anchor: Anchor) -> None:
    """Reject a ledger that is neither the recorded ledger nor a continuation of it.

    Args:
        path: Path of the ledger.
        ledger: Content of the ledger; None: the file is missing.
        anchor: Recorded number of lines and head.
    """
    lines, actual = anchor.lines, ledger or NO_STEPS
    if ledger is None or actual.lines < lines:
        got = "none" if ledger is None else actual.lines
        raise StateError(
            f"{path}, line {min(actual.lines, lines) + 1}: the ledger had {lines} lines when"
            f" {anchor.by} was written, and now has {got}. It was cut; restore the original file."
        )
    if actual.heads[lines] != anchor.head:
        raise StateError(
            f"{path}, line {lines}: the ledger's head was {anchor.head} when {anchor.by} was"
            f" written, and now is {actual.heads[lines]}. The ledger was replaced or edited;"
            " restore the original file."
        )


def _check_journal(folder: Path, ledger: LedgerRecord, journaled: int) -> None:
    """Reject a ledger or a replay log that lacks steps of the other file.

    Args:
        folder: Folder of the run.
        ledger: Content of the ledger.
        journaled: Number of steps in the replay log, read before the ledger.
    """
    path, journal = folder / LEDGER, folder / JOURNAL
    # The replay log is one step ahead for a moment in each step, but never after the end of a run.
    explained = 0 if ledger.closed else 1
    if journaled > ledger.steps + explained:
        line = ledger.line_of(ledger.steps + 1)
        raise StateError(
            f"{path}, line {line}: {journal} has {journaled} noisy steps and the ledger only"
            f" {ledger.steps}, but a crash can lose at most {explained}. The ledger was cut;"
            " restore the original file, because the missing steps have spent privacy."
        )
    if ledger.steps > journaled and ledger.steps > _journaled_steps(folder):
        raise StateError(
            f"{journal} must contain all {ledger.steps} noisy steps of {path}, got"
            f" {journaled}. It was cut or removed, or the ledger was extended; restore the original"
            " files."
        )


def _checkpoint_anchors(folder: Path) -> Iterator[Anchor]:
    """Yield the state of the ledger that each checkpoint records, if its run has a ledger.

    Raises:
        StateError: A checkpoint does not state the number of lines and the head.
    """
    for path in sorted(folder.glob(CHECKPOINT_STATES)):
        try:
            run = read_json(path).get("run") or {}
        except FileNotFoundError:  # A run in progress has replaced it by a newer checkpoint.
            continue
        if not isinstance(run, dict):
            continue
        if run.get("ledger") is None:
            continue
        try:
            there = parse(run["ledger"], KnownLedger)
            # If a step had been taken, the replay log would contain this step.
            before_first_line = there == _before_first_line(run)
        except (OverflowError, ValidationError) as error:
            raise StateError(
                f"{path} is damaged: it does not state the number of lines and the head of the"
                " ledger. Restore the original file."
            ) from error
        yield Anchor(there.lines, there.head, str(path), before_first_line)


def _before_first_line(run: Mapping[str, Any]) -> KnownLedger | None:
    """Return the ledger that a checkpoint of step 0 records, or None if it names no run.

    Raises:
        ValidationError: The plan or the clipper of the checkpoint is invalid.
    """
    if run.get("run_id") is None or run.get("plan") is None:
        return None
    first = {"schema_version": LEDGER_VERSION, "previous": GENESIS}
    first |= {name: run.get(name) for name in ("run_id", "plan", "clipper")}
    return KnownLedger(lines=1, head=hash_of(parse(first, FirstLine).text), position=0)


def _journaled_steps(folder: Path) -> int:
    return max(read_journal(folder / JOURNAL), default=0)


class JournaledLedger:
    """A ledger whose steps also leave fingerprints in the replay log, and can be replayed."""

    def __init__(
        self, ledger: Ledger, path: Path, *, environment: Mapping[str, Any], steps_done: int
    ) -> None:
        """Open the replay log, mode 0600, for appending.

        Args:
            ledger: New or reopened ledger.
            path: Path of the replay log.
            environment: Settings that affect the bits of a sum, such as threads and device.
            steps_done: Number of ledger steps that the weights already contain. Later ledger steps
                are replayed.
        """
        self.ledger = ledger
        self._expected = read_journal(path)
        self._environment = dict(environment)
        self.position = steps_done
        """Number of steps that the weights have taken. The next step is recorded or replayed."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "r+", encoding="utf-8", newline="\n")
        sync_folder(path.parent)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begin(self) -> None:
        """Write the first line of the ledger, unless it was written before."""
        self.ledger.begin()

    def record_step(self, mechanism: GaussianStep, gradients: Released) -> None:
        """Record a new step, or compare a replayed step with its recorded fingerprint.

        Args:
            mechanism: Ledger entry of the step.
            gradients: Noisy gradients, or the fingerprint of the gradients of all ranks' shards.

        Raises:
            ReplayError: The gradients differ from those of the step that is replayed.
        """
        step, is_in_ledger = self.position + 1, self.position < self.ledger.steps
        mark = gradients if isinstance(gradients, Mapping) else _fingerprint(gradients)
        stream = {} if mechanism.stream is None else {"stream": mechanism.stream}
        entry = {"step": step, **mark, **self._environment, **stream}
        expected = self._expected.get(step)
        # This includes a step whose ledger line a crash prevented: the same noise on a different
        # sum would reveal that sum to readers of the journal.
        if expected != entry and (is_in_ledger or expected is not None):
            # The message must not name the step: the duration of the replay would then reveal the
            # duration of a few steps.
            raise ReplayError("a repeated step differs from the original; nothing was released")
        if expected is None:
            self._write(entry)
        if not is_in_ledger:
            self.ledger.append(step, mechanism)
        self.position += 1

    def count_abandoned_step(self, mechanism: GaussianStep) -> None:
        """Record in the ledger a step that, because of a crash, is only in the replay log.

        dpft cannot distinguish a crash from a ledger whose last line was cut, so the step counts as
        taken. It is never repeated. The following steps have new noise and count separately.

        Args:
            mechanism: Ledger entry of the step. It has a separate stream of noise if the replay log
                does not contain the stream of the step.
        """
        step = self.ledger.steps + 1
        if step not in self._expected:
            self._write({"step": step, "abandoned": True})
        expected = self._expected.get(step, {})
        if "stream" in expected:
            mechanism = mechanism.replace(stream=expected["stream"])
        self.ledger.append(step, mechanism)
        self.position = step

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, sort_keys=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _fingerprint(gradients: "Sequence[Tensor]") -> dict[str, str]:
    """Return the sum and the sum of squares of all gradients in float64, as exact hex strings."""
    import torch  # imported here, because reading a ledger does not need torch

    moments = []
    for gradient in gradients:
        values = gradient.detach().double()
        moments.append(torch.stack((values.sum(), values.square().sum())))
    total = squares = 0.0
    for value, square in torch.stack(moments).tolist():  # one transfer from the device
        total, squares = total + value, squares + square
    return {"sum": total.hex(), "sum_of_squares": squares.hex()}
