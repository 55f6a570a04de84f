"""The ledger: an append-only, hash-chained record of noisy steps, synced to disk.

The first line is the plan, which contains every public number that epsilon depends on and the
calibration. The line also contains a random run id, so that the hashes of two runs always differ.
The first line is on disk before the first draw. The line of a step is written before the weights
change, so a crash can over-count a step but never miss one. The closing line contains the digest of
the released files. No line contains a time, a batch size or data.

Epsilon therefore follows from this file, whatever other files of the run state. The chain of hashes
reveals accidental edits, but not lines that were cut from the end. Module ``journal``, which reads
the folder of a run, detects these. The owner of the file can rewrite all of it, so publish the last
hash (the head) elsewhere.

``steps_taken`` returns the noisy steps in a form that an accountant can compose, which determines
the privacy spent. Sensitivities and clipping are not needed, because the noise is a multiple of the
sensitivity.
"""

import hashlib
import json
import math
import os
import secrets
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from pydantic import ValidationError

from dpft.errors import InputError, StateError
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.mechanisms.base import GaussianStep, check_stream, stream_lengths
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.mechanisms.histogram import GaussianCounts, GaussianHistogram
from dpft.privacy.plan import Plan, PrivacyPlan
from dpft.run_folder import read_file, sync_folder
from dpft.strict_model import (
    AtLeastOne,
    Count,
    Digest,
    NotNegative,
    Positive,
    Rate,
    RunId,
    StrictModel,
    as_json,
    parse_text,
)

if TYPE_CHECKING:
    from torch import Tensor


class LedgerHead(StrictModel):
    """The state of the ledger when another file was written."""

    lines: Count
    """Number of complete lines in ledger.jsonl, including the first and the closing line."""
    head: Digest
    """SHA-256 of the last line, 64 hexadecimal digits."""


Genesis = Literal["0000000000000000000000000000000000000000000000000000000000000000"]
GENESIS: Genesis = "0000000000000000000000000000000000000000000000000000000000000000"
CLOSING = '{"closed"'
"""Text with which only the closing line begins."""
FIRST = ('{"clipper"', '{"plan"')
"""Texts with which only a first line can begin."""
LEDGER_VERSION: Literal[2] = 2
"""Schema version of a ledger whose first line is the plan."""
Released: TypeAlias = "Sequence[Tensor] | Mapping[str, str]"
"""Noisy gradients of a step, or a fingerprint of the gradients of all ranks' shards."""


Step = GaussianStep | GaussianHistogram | GaussianCounts
"""A noisy step, as the ledger records it."""


class ClipperChoice(StrictModel):
    """How the gradients of a phase are clipped."""

    engine: Literal["book_keeping", "rows"]
    """The clipping engine."""
    modules: Mapping[str, Count]
    """For book_keeping: number of modules for each way of recording their parameters."""
    mapped: tuple[str, ...]
    """Paths of the modules that are mapped over the rows of a micro-batch."""


class FirstLine(StrictModel):
    """The first line: the run id and the plan that the run must follow.

    Epsilon follows from this line and the steps.
    """

    run_id: RunId
    """128 random bits that identify the run; public, and not derived from a key."""
    schema_version: Literal[2]
    """Schema version of the file. A reader rejects other versions."""
    previous: Genesis
    """64 zeros, because there is no previous line."""
    plan: Plan
    """The plan: every public number that epsilon depends on."""
    clipper: tuple[ClipperChoice, ...] | None = None
    """Result of the clipper's self-check on synthetic records, one per phase. Absent in ledgers of
    dpft 0.3, and if nothing was clipped."""

    @property
    def text(self) -> str:
        """The line as written to the file, without the line break."""
        return line_text(self)


class StepLine(StrictModel):
    """A noisy step."""

    step: AtLeastOne
    """Number of the noisy step, from 1."""
    previous: Digest
    """SHA-256 of the previous line."""
    mechanism: Step
    """The mechanism of the step, which the accountant needs."""


class ClosingLine(StrictModel):
    """The last line of a run that ended as planned."""

    closed: Literal[True]
    """The run has ended."""
    previous: Digest
    """SHA-256 of the previous line."""
    released: Digest | None = None
    """SHA-256 over the digests in model/tensors.json: those of all released tensors and, for an
    adapter, of its settings and base. For the histogram of a synthesis, the digest of counts.json.
    Absent for a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """Content of a ledger file."""

    steps: int
    """Number of noisy steps taken."""
    mechanisms: tuple[Step, ...]
    """The mechanism of each step."""
    closed: bool
    """Whether the run ended as planned."""
    lines: int
    """Number of complete lines in the file, including the first and the closing line."""
    head: str
    """Hash of the last complete line."""
    heads: tuple[str, ...] = (GENESIS,)
    """Head (hash of the last line) after 0, 1, 2, … lines."""
    run_id: str | None = None
    """Run id in the first line; None if no line is complete."""
    plan: Plan | None = None
    """Plan in the first line; None if no line is complete."""
    released: str | None = None
    """Digest of the released files in the closing line; None if it contains none."""
    torn_at: int | None = None
    """Byte at which an incomplete last line begins, left by an interrupted run; None if the last
    line is complete."""
    torn_step: bool = False
    """Whether the incomplete line may be a step. The step then counts as taken."""
    journaled_step: bool = False
    """Whether the replay log of the run has one more step, which then counts as taken."""

    @property
    def counted_steps(self) -> int:
        """Number of noisy steps to account for, including an incomplete or only journaled step."""
        return self.steps + (self.torn_step or self.journaled_step)

    @property
    def streams(self) -> tuple[int, ...]:
        """Number of steps taken in each stream of noise."""
        return stream_lengths(self.mechanisms)

    def line_of(self, step: int) -> int:
        """Return the number of the line that step ``step``, counted from 1, has or would have."""
        return step + 1


class StepLog(Protocol):
    """Log in which the engine records a noisy step before its gradient can be read."""

    def begin(self) -> None:
        """Write the first line with the plan, unless it was written before."""

    def record_step(self, mechanism: GaussianStep, gradients: Released) -> None:
        """Record the next step; after an error the step must not be released."""


class NoLedger:
    """Log of all ranks except the first, which writes the ledger of the run."""

    def begin(self) -> None:
        """Write nothing."""

    def record_step(self, mechanism: Step, gradients: Released) -> None:
        """Record nothing."""


class Ledger:
    """Writer that appends one line per noisy step after the plan."""

    def __init__(
        self,
        path: Path,
        *,
        plan: Plan,
        clipper: Sequence[ClipperChoice] | None = None,
        run_id: str | None = None,
    ) -> None:
        """Start a new ledger, whose first line is written by ``begin``.

        A checkpoint can therefore contain the head of the first line before the file has a line.

        Args:
            path: The file.
            plan: The plan that the run must follow.
            clipper: How the gradients of each phase are clipped.
            run_id: Run id, as ``new_run_id`` returns it; None: a new id.

        Raises:
            InputError: The file exists, so its run has already spent privacy on these records.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise InputError(
                f"{path} exists, because the run in this folder has taken noisy steps. "
                "Choose another folder with hydra.run.dir=DIR.",
                key="hydra.run.dir",
                value=str(path.parent),
            ) from None
        run_id = run_id or new_run_id()
        nothing = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)
        line = first_line(run_id, plan, clipper).text
        self._open(descriptor, replace(nothing, run_id=run_id), line)
        sync_folder(path.parent)

    @classmethod
    def reopen(
        cls,
        path: Path,
        record: LedgerRecord,
        *,
        plan: Plan | None = None,
        clipper: Sequence[ClipperChoice] | None = None,
        run_id: str | None = None,
    ) -> Self:
        """Return the ledger of an interrupted run, to continue after its last complete line.

        An incomplete line remains until the next line replaces it.

        Args:
            path: The file.
            record: Result of ``read_ledger``; not closed.
            plan: Plan for the first line, if no line is complete.
            clipper: Clipper for the first line, if no line is complete.
            run_id: Run id for the first line, if no line is complete.
        """
        if record.closed:
            raise ValueError("a closed ledger must stay as it is.")
        unwritten = None
        if record.lines == 0:
            if run_id is None or plan is None:
                raise ValueError("a ledger without a line must be given its first one.")
            unwritten = first_line(run_id, plan, clipper).text
            record = replace(record, run_id=run_id)
        ledger = cls.__new__(cls)
        ledger._open(os.open(path, os.O_WRONLY | os.O_APPEND), record, unwritten)
        return ledger

    def _open(self, descriptor: int, record: LedgerRecord, unwritten: str | None) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")
        self.lines, self.head, self.steps = record.lines, record.head, record.steps
        self._mechanisms = list(record.mechanisms)
        self.run_id, self._torn_at = record.run_id, record.torn_at
        self._unwritten = unwritten
        if unwritten is not None:
            self.lines, self.head = 1, hash_of(unwritten)

    def begin(self) -> None:
        """Write the first line, unless it is in the file, and wait until it is on disk."""
        if self._unwritten is not None:
            self._cut_torn_line()
            self._append(self._unwritten)
            self._unwritten = None

    @property
    def streams(self) -> tuple[int, ...]:
        """Number of steps taken in each stream of noise."""
        return stream_lengths(self._mechanisms)

    def streams_before(self, step: int) -> tuple[int, ...]:
        """Return the number of steps in each stream among the first ``step`` steps."""
        return stream_lengths(self._mechanisms[:step])

    def record_step(self, mechanism: Step, gradients: Released) -> None:
        """Record the next step; the ledger does not store its gradients."""
        self.append(self.steps + 1, mechanism)

    def append(self, step: int, mechanism: Step) -> None:
        """Record step ``step`` (counted from 1) and wait until the line is on disk."""
        self.begin()
        self._write(StepLine(step=step, mechanism=mechanism, previous=self.head))
        self.steps = step
        self._mechanisms.append(mechanism)

    def close(self, *, released: str | None = None) -> None:
        """Write the closing line, which states that the run ended as planned.

        Args:
            released: Digest of the released files, by which a reader can verify them.
        """
        self.begin()
        self._write(ClosingLine(closed=True, released=released, previous=self.head))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, entry: StepLine | ClosingLine) -> None:
        self._cut_torn_line()
        line = line_text(entry)
        self._append(line)
        self.head = hash_of(line)
        self.lines += 1

    def _cut_torn_line(self) -> None:
        if self._torn_at is not None:
            os.ftruncate(self._file.fileno(), self._torn_at)
            self._torn_at = None

    def _append(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def new_run_id() -> str:
    """Return 128 random bits in hex; public, and not derived from a key."""
    return secrets.token_hex(16)


def first_line(
    run_id: str, plan: Plan, clipper: Sequence[ClipperChoice] | None = None
) -> FirstLine:
    """Return the first line of a ledger."""
    return FirstLine(
        run_id=run_id,
        schema_version=LEDGER_VERSION,
        previous=GENESIS,
        plan=plan,
        clipper=None if clipper is None else tuple(clipper),
    )


def line_text(line: StrictModel) -> str:
    """Return a line as written to the file, without the line break."""
    return json.dumps(as_json(line), sort_keys=True)


def hash_of(line: str) -> str:
    """Return the SHA-256 of a line without its line break; the next line contains this hash."""
    return hashlib.sha256(line.encode()).hexdigest()


def read_ledger(path: Path) -> LedgerRecord:
    """Return the content of a ledger after verifying its chain of hashes.

    Raises:
        InputError: The ledger has another schema version.
        StateError: A line is damaged, missing, out of order or follows the closing line (the error
            gives its number), or the path is a folder.
    """
    head: str = GENESIS
    first: FirstLine | None = None
    closing: ClosingLine | None = None
    heads, mechanisms = [head], list[Step]()
    # Bytes that are not text make the line invalid JSON, which is rejected with its line number.
    content = read_file(path)
    *lines, torn = content.decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        if first is None:
            first = _first_of(line, path)
            allowed = list(map(first.plan.entry_at, first.plan.phase_starts()))
        else:
            expected_step = len(mechanisms) + 1
            entry = _step_or_closing(line, place)
            is_next = isinstance(entry, ClosingLine) or entry.step == expected_step
            if entry.previous != head or not is_next or closing is not None:
                raise StateError(
                    f"{place}: the ledger is broken here (expected step {expected_step} after the"
                    " previous line). It was edited, reordered or cut; restore the original file."
                )
            if isinstance(entry, ClosingLine):
                closing = entry
            elif _is_of_plan(entry.mechanism, allowed, mechanisms):
                mechanisms.append(entry.mechanism)
            else:
                raise StateError(
                    f"{place}: the step's mechanism is not in the plan in line 1. The ledger was"
                    " edited; restore the original file."
                )
        head = hash_of(line)
        heads.append(head)
    if torn and closing is not None:
        raise StateError(
            f"{path}, line {len(lines) + 1}: nothing may follow the closing line. Restore the"
            " original file."
        )
    return LedgerRecord(
        steps=len(mechanisms),
        mechanisms=tuple(mechanisms),
        closed=closing is not None,
        lines=len(lines),
        head=head,
        heads=tuple(heads),
        run_id=None if first is None else first.run_id,
        plan=None if first is None else first.plan,
        released=None if closing is None else closing.released,
        torn_at=content.rfind(b"\n") + 1 if torn else None,
        torn_step=bool(torn) and not torn.startswith((CLOSING,) if lines else (CLOSING, *FIRST)),
    )


def _step_or_closing(line: str, place: str) -> StepLine | ClosingLine:
    kind: Any = StepLine | ClosingLine
    try:
        entry: StepLine | ClosingLine = parse_text(line, kind)
    except (OverflowError, ValidationError):
        raise StateError(
            f"{place}: expected a noisy step or the closing line, got a damaged line. Restore the"
            " original file."
        ) from None
    return entry


def _is_of_plan(mechanism: Step, allowed: Sequence[Step], before: Sequence[Any]) -> bool:
    """Return whether a step has the plan's mechanism, and a stream that may follow ``before``."""
    planned = allowed[0]
    if not isinstance(planned, GaussianStep) or planned.stream is None:
        return mechanism in allowed
    if not isinstance(mechanism, GaussianStep):
        return False
    try:
        check_stream(mechanism, before)
    except ValueError:
        return False
    return mechanism.replace(stream=planned.stream) in allowed


def _first_of(line: str, path: Path) -> FirstLine:
    """Return the first line after checking its version, and that its text is as dpft writes it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # ValueError also covers integers with too many digits.
        entry = None
    entry = entry if isinstance(entry, dict) else {}
    is_older = entry.get("previous") == GENESIS and {"step", "schema_version"} & {*entry} == {
        "step"
    }
    version = 0 if is_older else entry.get("schema_version")
    if type(version) is int and version != LEDGER_VERSION:
        writer = "dpft 0.3.0 or earlier" if version < LEDGER_VERSION else "a later version of dpft"
        raise InputError(
            f"{path} must be a ledger of schema_version {LEDGER_VERSION}, but {writer} wrote it."
            " Account for it with that version.",
            key=str(path),
            value=version,
        )
    try:
        if line == json.dumps(entry, sort_keys=True):
            return parse_text(line, FirstLine)
    except (OverflowError, RecursionError, ValidationError):
        pass
    raise StateError(
        f"{path}, line 1: the ledger is broken here (expected the line with the run's plan). It was"
        " edited, reordered or cut; restore the original file."
    )


def check_ledger(record: LedgerRecord, plan: PrivacyPlan) -> None:
    """Reject a ledger that does not belong to a finished run of ``plan``.

    The ledger can have more steps than the plan, if steps were repeated with new noise after a
    crash. It can also have fewer steps, if an interrupted stream of correlated noise is accounted
    with more steps than it took.
    """
    if record.plan != plan:
        raise StateError(
            "the first line of the ledger does not contain the plan of the run. The ledger was"
            " changed; restore the original file."
        )
    if not record.closed or not plan.may_end_after(record.streams):
        raise StateError(
            f"the ledger must have {plan.steps} steps and be closed, got {record.steps} steps"
            f"{'' if record.closed else ', not closed'}. It was changed; restore the original file."
        )


class Noise(StrictModel):
    """The numbers that determine the cost of one noisy step."""

    noise_multiplier: Positive
    """Standard deviation of the noise divided by the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit takes part in a step."""
    threshold_delta: NotNegative = 0.0
    """Part of delta that the threshold of a histogram uses in addition to the noise."""


def noise_of(step: Step) -> Noise:
    """Return the numbers that determine the cost of a step."""
    if isinstance(step, GaussianStep):
        return Noise(noise_multiplier=step.noise_multiplier, sample_rate=step.sample_rate)
    return Noise(
        noise_multiplier=step.noise_multiplier,
        sample_rate=1.0,
        threshold_delta=step.threshold_delta,
    )


def steps_taken(
    record: LedgerRecord, path: Path, *, planned: Noise | None = None
) -> dict[Noise, int]:
    """Return the number of Poisson-sampled Gaussians that bound the steps taken, for each noise.

    For DP-SGD this is the number of steps with this noise. For other mechanisms it is the number
    that ``Mechanism.compositions`` returns.

    A step whose line is incomplete, or that is only in the replay log, also counts. Its numbers are
    not known, so it gets the least noise, the largest sample rate and the largest threshold delta
    of the complete lines, and a separate stream. No step of the run can have cost more.

    Args:
        record: Content of the ledger.
        path: The file, for messages.
        planned: Noise of the first step, if the plan is known.

    Raises:
        InputError: No step is complete, one may have been taken, and ``planned`` is None.
    """
    plan = record.plan
    mechanism = plan.mechanism if isinstance(plan, PrivacyPlan) else DPSGD()
    streams: dict[Noise, Counter[Any]] = {}
    for step in record.mechanisms:
        streams.setdefault(noise_of(step), Counter())[getattr(step, "stream", None)] += 1
    if record.counted_steps > record.steps:
        streams.setdefault(_costliest(streams, path, planned), Counter())["another"] += 1
    return sorted_by_noise(
        {
            noise: mechanism.compositions(steps_by_stream.values())
            for noise, steps_by_stream in streams.items()
        }
    )


def sorted_by_noise(taken: Mapping[Noise, int]) -> dict[Noise, int]:
    """Return numbers of steps by their noise, in ascending order of the noise multiplier."""
    return dict(sorted(taken.items(), key=lambda item: tuple(dict(item[0]).values())))


def as_mechanisms(taken: Mapping[Noise, int], delta: float) -> tuple[SampledGaussian, ...]:
    """Return the steps as mechanisms, with ``delta`` reduced by the thresholds of histograms.

    Raises:
        InputError: ``delta`` is out of range, or the thresholds use all of it.
    """
    thresholds = thresholds_delta(taken)
    if thresholds >= delta:
        raise InputError(
            f"delta must be above {thresholds:.4g}, which the thresholds of tokenizers use, got"
            f" {delta:.4g}.",
            key="delta",
            value=delta,
            hint=f"delta={2 * thresholds:.2g}",
        )
    return tuple(
        SampledGaussian(
            noise_multiplier=noise.noise_multiplier,
            sample_rate=noise.sample_rate,
            steps=steps,
            delta=delta - thresholds,
        )
        for noise, steps in taken.items()
    )


def sum_steps(*taken: Mapping[Noise, int]) -> dict[Noise, int]:
    """Return the steps of several runs together, added up for each noise."""
    counts: Counter[Noise] = Counter()
    for steps in taken:
        counts.update(steps)
    return sorted_by_noise(counts)


def thresholds_delta(taken: Mapping[Noise, int]) -> float:
    """Return the part of delta that the thresholds of histograms among these steps use."""
    return math.fsum(noise.threshold_delta * steps for noise, steps in taken.items())


def _costliest(counts: Collection[Noise], path: Path, planned: Noise | None) -> Noise:
    if counts:
        return Noise(
            noise_multiplier=min(noise.noise_multiplier for noise in counts),
            sample_rate=max(noise.sample_rate for noise in counts),
            threshold_delta=max(noise.threshold_delta for noise in counts),
        )
    if planned is None:
        raise InputError(
            f"{path} contains no complete step, so the noise of the one step that may have been"
            " taken is unknown. Resume the run first.",
            key=str(path),
            hint=f"resume={shlex.quote(str(path.parent))}",
        )
    return planned
