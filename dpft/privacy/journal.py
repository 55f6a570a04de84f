"""The private journal of steps: a resumed run's repeated steps must match it.

*The replay log*, ``private/steps.jsonl``. A run that broke off is resumed from a checkpoint, and
takes the steps since then once more. Those are in the ledger already, and cost nothing more only if
they release the very same noisy gradients: the same noise on another sum would give the sum away.
So each step leaves a fingerprint of its noisy gradient here before it is in the ledger, and a
replayed step must have the same.

*Completeness.* The ledger's chain of hashes proves the order of its lines and not that none is
missing at its end: the first five lines of a ledger of seven are a ledger of five. What knows
better stands beside it in ``private/``: the replay log, which has each step a moment before the
ledger, and the checkpoints, which name the number of lines and the head they were written after.
Every reader of a run's folder reads the ledger by ``read_run_ledger``, so that none takes a cut one
for whole.

Worked example: a run broke off after step 7, and its ledger was cut to 5 lines. The replay log
knows of 7 steps. A crash between the two files explains a replay log that is one step ahead; two
steps it does not explain, and the ledger is refused. Had it been cut to 6 lines, the seventh step
would be counted all the same, as one whose line a crash prevented.
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
    """A line of private/steps.jsonl, as far as a report reads it."""

    step: AtLeastOne
    """Number of the step."""
    processes: Process | None = None
    """The processes that took it; absent where they are those of the step before."""
    model_config = ConfigDict(extra="allow")

    @property
    def others(self) -> Mapping[str, Any]:
        """The values by which a repeated step is compared with its first execution."""
        return self.model_extra or {}


class KnownLedger(StrictModel):
    """The ledger as a checkpoint was written after it."""

    lines: Count
    """Its whole lines."""
    head: str
    """SHA-256 of the last one."""
    position: Count
    """Steps of the ledger that the weights stand at; more than their own where some were taken
    again."""


NO_STEPS = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)


class ReplayError(DpftError):
    """A replayed step is not what it was; nothing of it was released."""


def is_failed_replay(error: DpftError) -> bool:
    """Return whether a replayed step was not what it was, on this process or another."""
    kind = error.kind if isinstance(error, SaidElsewhere) else type(error).__name__
    return kind == ReplayError.__name__


@dataclass(frozen=True)
class Anchor:
    """Lines and head of a ledger as they were written down elsewhere.

    Attributes:
        lines: Whole lines that it had.
        head: Hash of the last of them.
        by: What says so, for messages.
        before_first_line: Whether no step had been taken: the checkpoint of step 0 has the head
            of the first line, which is written with the first step.
    """

    lines: int
    head: str
    by: str
    before_first_line: bool = False


def read_run_ledger(folder: Path) -> LedgerRecord | None:
    """Return the ledger of a run's folder, once everything in ``private/`` agrees with it.

    A run may be going on meanwhile: what follows the ledger is read before it.

    Args:
        folder: The run's; ``private/`` need not be in it.

    Returns:
        What the ledger says, a step that only the replay log has included in ``counted_steps``;
        None where there is none and nothing knows of one.

    Raises:
        InputError: A file is of another schema version.
        StateError: The ledger is damaged, or was cut, replaced or removed; or the replay log was.
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
    """Return whether ``private/`` knows how many steps the run has taken."""
    return bool((folder / JOURNAL).exists() or list(folder.glob(CHECKPOINT_STATES)))


def read_journal(path: Path) -> dict[int, dict[str, Any]]:
    """Return each step's last entry, by its number; none where there is no such file.

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
    """Reject a ledger other than the one whose lines and head were written down, or its sequel.

    Args:
        path: The ledger.
        ledger: What it says; None: it is gone.
        anchor: Its lines and head as they were then.
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
    """Reject a ledger and a replay log of which one lacks steps that the other has.

    Args:
        folder: The run's.
        ledger: What its ledger says.
        journaled: Steps of the replay log, as they were before the ledger was read.
    """
    path, journal = folder / LEDGER, folder / JOURNAL
    # The replay log is a step ahead for a moment in each step, and never once the run has ended.
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
            f"{journal} must have each of the {ledger.steps} noisy steps of {path}, got"
            f" {journaled}. It was cut or removed, or the ledger was extended; restore the original"
            " files."
        )


def _checkpoint_anchors(folder: Path) -> Iterator[Anchor]:
    """Yield what each checkpoint says of the ledger, of a run that has one.

    Raises:
        StateError: It names no lines and head.
    """
    for path in sorted(folder.glob(CHECKPOINT_STATES)):
        try:
            run = read_json(path).get("run") or {}
        except FileNotFoundError:  # A run that goes on has dropped it for a newer one.
            continue
        if not isinstance(run, dict):
            continue
        if run.get("ledger") is None:
            continue
        try:
            there = parse(run["ledger"], KnownLedger)
            # Had a step been taken, the replay log would have it.
            before_first_line = there == _before_first_line(run)
        except (OverflowError, ValidationError) as error:
            raise StateError(
                f"{path} is damaged: it does not state the number of lines and the head of the"
                " ledger. Restore the original file."
            ) from error
        yield Anchor(there.lines, there.head, str(path), before_first_line)


def _before_first_line(run: Mapping[str, Any]) -> KnownLedger | None:
    """Return what a checkpoint of step 0 says of the ledger; None where it names no run.

    Raises:
        ValidationError: Its plan, or its clipper, is none.
    """
    if run.get("run_id") is None or run.get("plan") is None:
        return None
    first = {"schema_version": LEDGER_VERSION, "previous": GENESIS}
    first |= {name: run.get(name) for name in ("run_id", "plan", "clipper")}
    return KnownLedger(lines=1, head=hash_of(parse(first, FirstLine).text), position=0)


def _journaled_steps(folder: Path) -> int:
    return max(read_journal(folder / JOURNAL), default=0)


class JournaledLedger:
    """A ledger whose steps leave fingerprints in the replay log, and may be replayed."""

    def __init__(
        self, ledger: Ledger, path: Path, *, environment: Mapping[str, Any], steps_done: int
    ) -> None:
        """Open the replay log, mode 0600, and goes on in it.

        Args:
            ledger: New or reopened.
            path: The replay log.
            environment: What the bits of a sum depend on: threads, device and the like.
            steps_done: Steps of the ledger that stand and are not replayed; those of the ledger
                beyond it are.
        """
        self.ledger = ledger
        self._expected = read_journal(path)
        self._environment = dict(environment)
        self.position = steps_done
        """Steps that the weights have taken; the next one is recorded, or replayed."""
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
        """Write the ledger's first line, unless it was written before."""
        self.ledger.begin()

    def record_step(self, mechanism: GaussianStep, gradients: Released) -> None:
        """Record a step, or holds a replayed one against what is recorded of it.

        Args:
            mechanism: What the ledger says of it.
            gradients: The noisy gradients, or the fingerprint of those of all ranks' shards.

        Raises:
            ReplayError: They are not those of the step that is replayed.
        """
        step, is_in_ledger = self.position + 1, self.position < self.ledger.steps
        mark = gradients if isinstance(gradients, Mapping) else _fingerprint(gradients)
        stream = {} if mechanism.stream is None else {"stream": mechanism.stream}
        entry = {"step": step, **mark, **self._environment, **stream}
        expected = self._expected.get(step)
        # Also one whose ledger line a crash prevented: the same noise on another sum would give
        # that sum away to whoever sees the journal.
        if expected != entry and (is_in_ledger or expected is not None):
            # Not which step: how long the replay took until then would be a few steps' time.
            raise ReplayError("a step did not come out as it was; nothing of it was released")
        if expected is None:
            self._write(entry)
        if not is_in_ledger:
            self.ledger.append(step, mechanism)
        self.position += 1

    def count_abandoned_step(self, mechanism: GaussianStep) -> None:
        """Record, as a step that was taken, the one that a crash kept out of the ledger.

        It is never taken again: what follows has new noise and is a step of its own. Whether it
        was a crash, or somebody cut the ledger's last line, cannot be told, so it counts.

        Args:
            mechanism: What the ledger says of it, of a stream of its own where the journal does not
                know of which it was.
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
    """Return the sum and the sum of squares of all gradients, float64, bit for bit in hex."""
    import torch  # whoever reads a ledger needs none

    moments = []
    for gradient in gradients:
        values = gradient.detach().double()
        moments.append(torch.stack((values.sum(), values.square().sum())))
    total = squares = 0.0
    for value, square in torch.stack(moments).tolist():  # one look at the device
        total, squares = total + value, squares + square
    return {"sum": total.hex(), "sum_of_squares": squares.hex()}
