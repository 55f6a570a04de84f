"""The ledger: an append-only, hash-chained record of noisy steps, synced to disk.

The first line is the plan: every public number that epsilon rests on, its calibration, and a random
number that names the run, so that no other run's ledger has its heads. It is on disk before the
first draw. A step's line is written before the weights move, so a crash can over-count a step and
never miss one. The closing line has the digest of what was released. No line holds a time, a batch
size or data. So epsilon follows from this file alone, whatever other files of the run say. The
chain of hashes shows accidental edits, and says nothing of lines cut from the end (see
``journal``, by which a run's folder is read); whoever owns the file could rewrite all of it,
so the head is to be published elsewhere.

``steps_taken`` says what was spent: noisy steps as mechanisms that an accountant can compose.
Sensitivities and clipping do not enter: the noise is a multiple of the sensitivity, whatever it is.
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
    """The ledger as it was when this was written."""

    lines: Count
    """Whole lines in ledger.jsonl, the first and the closing one included."""
    head: Digest
    """SHA-256 of the last line, 64 hexadecimal digits."""


Genesis = Literal["0000000000000000000000000000000000000000000000000000000000000000"]
GENESIS: Genesis = "0000000000000000000000000000000000000000000000000000000000000000"
CLOSING = '{"closed"'
"""How the closing line begins, and no other."""
FIRST = ('{"clipper"', '{"plan"')
"""How the first line begins, and no other."""
LEDGER_VERSION: Literal[2] = 2
"""Schema version of a ledger whose first line is the plan."""
Released: TypeAlias = "Sequence[Tensor] | Mapping[str, str]"
"""A step's noisy gradients, or the fingerprint of those of all ranks' shards."""


Step = GaussianStep | GaussianHistogram | GaussianCounts
"""What a noisy step was."""


class ClipperChoice(StrictModel):
    """How the gradients of a phase are clipped."""

    engine: Literal["book_keeping", "rows"]
    """The clipping engine."""
    modules: Mapping[str, Count]
    """For book_keeping: number of modules by how their parameters are recorded."""
    mapped: tuple[str, ...]
    """Paths of the modules that are mapped over the rows of a micro-batch."""


class FirstLine(StrictModel):
    """The first line: what the run is bound to, and what names it.

    Epsilon follows from it and the steps alone.
    """

    run_id: RunId
    """128 random bits of the run's own, public and of no key."""
    schema_version: Literal[2]
    """Version of the file's form. A reader refuses another one."""
    previous: Genesis
    """64 zeros: no line stands before."""
    plan: Plan
    """Every public number that epsilon rests on."""
    clipper: tuple[ClipperChoice, ...] | None = None
    """The result of the clipper's self-check on synthetic records, one per phase; absent in a line
    of dpft 0.3, and if nothing was clipped."""

    @property
    def text(self) -> str:
        """The line as it is written, without its end."""
        return line_text(self)


class StepLine(StrictModel):
    """A noisy step."""

    step: AtLeastOne
    """Number of the noisy step, from 1."""
    previous: Digest
    """SHA-256 of the line before."""
    mechanism: Step
    """What the accountant needs of the step."""


class ClosingLine(StrictModel):
    """The last line of a run that ended as planned."""

    closed: Literal[True]
    """The run has ended."""
    previous: Digest
    """SHA-256 of the line before."""
    released: Digest | None = None
    """SHA-256 over the digests in model/tensors.json: of all released tensors, of an adapter's
    settings and base too; of a synthesis's histogram that of counts.json. Absent in a tokenizer's
    run."""


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """What a ledger file says."""

    steps: int
    """Noisy steps taken."""
    mechanisms: tuple[Step, ...]
    """The mechanism of each step."""
    closed: bool
    """Whether the run ended as planned."""
    lines: int
    """Whole lines in the file, the first and the closing one included."""
    head: str
    """Hash of the last of them."""
    heads: tuple[str, ...] = (GENESIS,)
    """Head after each number of lines, that of none among them."""
    run_id: str | None = None
    """What the first line names the run by; None where no line is whole."""
    plan: Plan | None = None
    """What the run is bound to; None where no line is whole."""
    released: str | None = None
    """Digest of what was released, of the closing line; None where it has none."""
    torn_at: int | None = None
    """Where a line begins that was being written when the run broke off, in bytes, or None."""
    torn_step: bool = False
    """Whether that line may be of a step: then the step counts as taken."""
    journaled_step: bool = False
    """Whether the run's replay log has one step more: it counts as taken, too."""

    @property
    def counted_steps(self) -> int:
        """Noisy steps to account for: those taken, and one whose line is torn or only logged."""
        return self.steps + (self.torn_step or self.journaled_step)

    @property
    def streams(self) -> tuple[int, ...]:
        """How many steps were taken in each stream of noise."""
        return stream_lengths(self.mechanisms)

    def line_of(self, step: int) -> int:
        """Return the number of the line that a step, counted from 1, has or would have."""
        return step + 1


class StepLog(Protocol):
    """Where the engine records a noisy step before its gradient is readable."""

    def begin(self) -> None:
        """Write the first line, the plan, unless it was written before."""

    def record_step(self, mechanism: GaussianStep, gradients: Released) -> None:
        """Record the next step; an error means that it must not be released."""


class NoLedger:
    """The log of every rank but the first, whose ledger is the run's."""

    def begin(self) -> None:
        """Write nothing."""

    def record_step(self, mechanism: Step, gradients: Released) -> None:
        """Record nothing."""


class Ledger:
    """Appends one line per noisy step, after the plan."""

    def __init__(
        self,
        path: Path,
        *,
        plan: Plan,
        clipper: Sequence[ClipperChoice] | None = None,
        run_id: str | None = None,
    ) -> None:
        """Start a new ledger, whose first line is written by ``begin``.

        So a checkpoint can hold the first line's head before the file has a line.

        Args:
            path: The file.
            plan: What the run is bound to.
            clipper: How each phase's gradients are clipped.
            run_id: What names the run, as ``new_run_id`` returns it; None: a new one.

        Raises:
            InputError: There is one already: its run has spent privacy on these records.
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
        """Return the ledger of a run that broke off, to go on after its last whole line.

        A torn line stays until the next one is written in its place.

        Args:
            path: The file.
            record: What ``read_ledger`` says of it; not closed.
            plan: What its first line is to hold, where no line is whole.
            clipper: The same of the clipper.
            run_id: What that is to name the run by.
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
        """Write the first line, unless it is there, and wait until it is on disk."""
        if self._unwritten is not None:
            self._cut_torn_line()
            self._append(self._unwritten)
            self._unwritten = None

    @property
    def streams(self) -> tuple[int, ...]:
        """How many steps were taken in each stream of noise."""
        return stream_lengths(self._mechanisms)

    def streams_before(self, step: int) -> tuple[int, ...]:
        """Return the same of the first ``step`` steps."""
        return stream_lengths(self._mechanisms[:step])

    def record_step(self, mechanism: Step, gradients: Released) -> None:
        """Record the next step; what its gradients are is not kept here."""
        self.append(self.steps + 1, mechanism)

    def append(self, step: int, mechanism: Step) -> None:
        """Record step ``step`` (counted from 1) and waits until it is on disk."""
        self.begin()
        self._write(StepLine(step=step, mechanism=mechanism, previous=self.head))
        self.steps = step
        self._mechanisms.append(mechanism)

    def close(self, *, released: str | None = None) -> None:
        """Write the line that says the run ended as planned.

        Args:
            released: Digest of what was released, which holds a later reader to it.
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
    """Return 128 random bits in hex: public, and derived from no key."""
    return secrets.token_hex(16)


def first_line(
    run_id: str, plan: Plan, clipper: Sequence[ClipperChoice] | None = None
) -> FirstLine:
    """Return a ledger's first line."""
    return FirstLine(
        run_id=run_id,
        schema_version=LEDGER_VERSION,
        previous=GENESIS,
        plan=plan,
        clipper=None if clipper is None else tuple(clipper),
    )


def line_text(line: StrictModel) -> str:
    """Return a line as it is written, without its end."""
    return json.dumps(as_json(line), sort_keys=True)


def hash_of(line: str) -> str:
    """Return the SHA-256 of a line without its end, which the next one names."""
    return hashlib.sha256(line.encode()).hexdigest()


def read_ledger(path: Path) -> LedgerRecord:
    """Return what a ledger says, after checking its chain.

    Raises:
        InputError: It is of another schema version.
        StateError: A line is damaged, missing, out of order or follows the closing one; named by
            number; or it is a folder.
    """
    head: str = GENESIS
    first: FirstLine | None = None
    closing: ClosingLine | None = None
    heads, mechanisms = [head], list[Step]()
    # Bytes that are no text make a line that is no JSON, which is refused by its number.
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
    """Whether a step's mechanism is the plan's, in whichever stream of noise comes next."""
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
    """Return the first line, once its version is known and its text is what dpft writes."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # A ValueError also of a number of too many digits.
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
    """Reject a ledger that is not that of a finished run of ``plan``.

    Steps that were taken again with new noise after a crash make it longer than the plan, or
    shorter, where a stream that broke off cost more steps than it took.
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
    """What the cost of one noisy step depends on."""

    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    threshold_delta: NotNegative = 0.0
    """What of delta goes beside the noise, to the threshold of a histogram."""


def noise_of(step: Step) -> Noise:
    """Return what the cost of a step depends on."""
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
    """Return how many Poisson-sampled Gaussians bound the steps taken, by their noise.

    Of DP-SGD they are the steps, of which those of equal noise add up; of another mechanism those
    that it says (``Mechanism.compositions``).

    A step whose line is torn, or that only the journal has, counts. What it was is not known, so it
    takes the least noise and the largest sample rate of the whole lines, and the most that a
    threshold took of delta, and a stream of its own, under which no step of the run cost more.

    Args:
        record: What the ledger says.
        path: The file, for messages.
        planned: What the first step would be, where the plan is known.

    Raises:
        InputError: No step is whole, one may have been taken, and ``planned`` is not known.
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
    """Return numbers of steps by their noise, the smallest noise first."""
    return dict(sorted(taken.items(), key=lambda item: tuple(dict(item[0]).values())))


def as_mechanisms(taken: Mapping[Noise, int], delta: float) -> tuple[SampledGaussian, ...]:
    """Return steps taken as mechanisms to account for at what thresholds leave of ``delta``.

    Raises:
        InputError: ``delta`` is out of range, or thresholds leave nothing of it.
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
    """Return the steps of several runs together; those of equal noise add up."""
    counts: Counter[Noise] = Counter()
    for steps in taken:
        counts.update(steps)
    return sorted_by_noise(counts)


def thresholds_delta(taken: Mapping[Noise, int]) -> float:
    """Return what the thresholds of histograms among these steps take of delta."""
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
