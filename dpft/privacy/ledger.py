"""The ledger: an append-only, hash-chained record of noisy steps, synced to disk.

The first line is the plan: every public number that epsilon rests on, its calibration, and a random
number that names the run, so that no other run's ledger has its heads. It is on disk before the
first draw. A step's line is written before the weights move, so a crash can over-count a step and
never miss one. The closing line has the digest of what was released. No line holds a time, a batch
size or data. So epsilon follows from this file alone, whatever other files of the run say. The
chain of hashes shows accidental edits, and says nothing of lines cut from the end (see
``replay_log``, by which a run's folder is read); whoever owns the file could rewrite all of it,
so the head is to be published elsewhere.

``steps_taken`` says what was spent: noisy steps as mechanisms that an accountant can compose.
Sensitivities and clipping do not enter: the noise is a multiple of the sensitivity, whatever it is.
"""

import hashlib
import json
import math
import os
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from dpft.errors import InputError, StateError
from dpft.files import read_file, sync_folder
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.mechanisms.base import STREAM, Mechanism, check_stream, stream_lengths, stream_of
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.mechanisms.histogram import COUNTS, counts_of, histogram_of
from dpft.privacy.mechanisms.histogram import MECHANISM as HISTOGRAM
from dpft.privacy.plan import Plan, PrivacyPlan, read_plan

if TYPE_CHECKING:
    from torch import Tensor


GENESIS = "0" * 64
CLOSING = '{"closed"'
"""How the closing line begins, and no other."""
FIRST = '{"plan"'
"""How the first line begins, and no other."""
LEDGER_VERSION = 2
"""Schema version of a ledger whose first line is the plan."""
Released: TypeAlias = "Sequence[Tensor] | Mapping[str, str]"
"""A step's noisy gradients, or the fingerprint of those of all ranks' shards."""


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """What a ledger file says."""

    steps: int
    """Noisy steps taken."""
    mechanisms: tuple[Mapping[str, Any], ...]
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
        """Returns the number of the line that a step, counted from 1, has or would have."""
        return step + 1


class StepLog(Protocol):
    """Where the engine records a noisy step before its gradient is readable."""

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records the next step; an error means that it must not be released."""


class NoLedger:
    """The log of every rank but the first, whose ledger is the run's."""

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records nothing."""


class Ledger:
    """Appends one line per noisy step, after the plan."""

    def __init__(
        self,
        path: Path,
        *,
        plan: Mapping[str, Any],
        clipper: Sequence[Mapping[str, Any]] | None = None,
        run_id: str | None = None,
    ) -> None:
        """Starts a new ledger, whose first line is written by ``begin``.

        So a checkpoint can hold the first line's head before the file has a line.

        Args:
            path: The file.
            plan: What the run is bound to, as ``write_plan`` returns it.
            clipper: How each phase's gradients are clipped, as ``ClippingChoice.public`` returns.
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
        run_id = run_id or new_run_id()
        nothing = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)
        line = first_line(run_id, plan, clipper)
        self._open(descriptor, replace(nothing, run_id=run_id), line)
        sync_folder(path.parent)

    @classmethod
    def reopen(
        cls,
        path: Path,
        record: LedgerRecord,
        *,
        plan: Mapping[str, Any] | None = None,
        clipper: Sequence[Mapping[str, Any]] | None = None,
        run_id: str | None = None,
    ) -> Self:
        """Returns the ledger of a run that broke off, to go on after its last whole line.

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
            unwritten = first_line(run_id, plan, clipper)
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
        """Writes the first line, unless it is there, and waits until it is on disk."""
        if self._unwritten is not None:
            self._cut_torn_line()
            self._append(self._unwritten)
            self._unwritten = None

    @property
    def streams(self) -> tuple[int, ...]:
        """How many steps were taken in each stream of noise."""
        return stream_lengths(self._mechanisms)

    def streams_before(self, step: int) -> tuple[int, ...]:
        """Returns the same of the first ``step`` steps."""
        return stream_lengths(self._mechanisms[:step])

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records the next step; what its gradients are is not kept here."""
        self.append(self.steps + 1, mechanism)

    def append(self, step: int, mechanism: Mapping[str, Any]) -> None:
        """Records step ``step`` (counted from 1) and waits until it is on disk."""
        self._write({"step": step, "mechanism": dict(mechanism)})
        self.steps = step
        self._mechanisms.append(mechanism)

    def close(self, *, released: str | None = None) -> None:
        """Writes the line that says the run ended as planned.

        Args:
            released: Digest of what was released, which holds a later reader to it.
        """
        self._write({"closed": True} | ({} if released is None else {"released": released}))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self.begin()
        self._cut_torn_line()
        line = json.dumps({**entry, "previous": self.head}, sort_keys=True)
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
    """Returns 128 random bits in hex: public, and derived from no key."""
    return secrets.token_hex(16)


def first_line(run_id: str, plan: Mapping[str, Any], clipper: object = None) -> str:
    """Returns a ledger's first line, bound to what ``write_plan`` returned, without line end."""
    line = {} if clipper is None else {"clipper": clipper}
    line |= {
        "run_id": run_id,
        "schema_version": LEDGER_VERSION,
        "previous": GENESIS,
        "plan": dict(plan),
    }
    return json.dumps(line, sort_keys=True)


def hash_of(line: str) -> str:
    """Returns the SHA-256 of a line without its end, which the next one names."""
    return hashlib.sha256(line.encode()).hexdigest()


@dataclass(frozen=True)
class _Line:
    """One line of a file, read but not yet believed: a key that is absent is None."""

    previous: object = None
    schema_version: object = None
    run_id: object = None
    plan: object = None
    clipper: object = None
    step: object = None
    mechanism: object = None
    closed: object = None
    released: object = None

    @classmethod
    def read(cls, text: str, place: str) -> Self:
        """Returns a line, of which keys of no meaning here are left out.

        Raises:
            StateError: It is no JSON object.
        """
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):  # A ValueError also of a number of too many digits.
            entry = None
        if not isinstance(entry, dict):
            raise StateError(
                f"{place}: expected one JSON object, got a damaged line; put the ledger back as it"
                " was."
            )
        return cls(**{key.name: entry.get(key.name) for key in fields(cls)})


def read_ledger(path: Path) -> LedgerRecord:
    """Returns what a ledger says, after checking its chain.

    Raises:
        InputError: It is of another schema version.
        StateError: A line is damaged, missing, out of order or follows the closing one; named by
            number; or it is a folder.
    """
    head, closed, released = GENESIS, False, None
    run_id, plan, allowed = None, None, list[dict[str, Any]]()
    heads, mechanisms = [GENESIS], list[Mapping[str, Any]]()
    # Bytes that are no text make a line that is no JSON, which is refused by its number.
    content = read_file(path)
    *lines, torn = content.decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        place = f"{path}, line {number}"
        entry = _Line.read(line, place)
        if number == 1:
            run_id, plan = _run_and_plan(entry, line, path)
            allowed = list(map(plan.entry_at, plan.phase_starts()))
        expected_step = len(mechanisms) + 1
        ends = entry.closed is True
        is_next = type(entry.step) is int and entry.step == expected_step  # true equals 1
        in_order = number == 1 or ends or is_next
        if entry.previous != head or not in_order or closed:
            raise StateError(
                f"{place}: the ledger is broken here (expected step {expected_step} after the line"
                " before); it was edited, reordered or cut. Put the ledger back as it was."
            )
        closed = ends
        if ends:
            released = entry.released
            if released is not None and not (
                isinstance(released, str) and re.fullmatch("[0-9a-f]{64}", released)
            ):
                raise StateError(
                    f"{place}: expected the digest of what was released, got something else; it"
                    " was edited. Put the ledger back as it was."
                )
        elif number > 1:
            if not isinstance(entry.mechanism, dict) or not _is_of_plan(
                entry.mechanism, allowed, mechanisms
            ):
                raise StateError(
                    f"{place}: the step must be of a mechanism of the plan in line 1, got another;"
                    " it was edited. Put the ledger back as it was."
                )
            mechanisms.append(entry.mechanism)
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
        plan=plan,
        released=None if released is None else str(released),
        torn_at=content.rfind(b"\n") + 1 if torn else None,
        torn_step=bool(torn) and not torn.startswith((CLOSING,) if lines else (CLOSING, FIRST)),
    )


def _is_of_plan(
    mechanism: Mapping[str, Any],
    allowed: Sequence[Mapping[str, Any]],
    before: Sequence[Mapping[str, Any]],
) -> bool:
    """Whether a step's mechanism is the plan's, in whichever stream of noise comes next."""
    if STREAM not in allowed[0]:
        return mechanism in allowed
    try:
        check_stream(mechanism, before)
    except ValueError:
        return False
    return {**mechanism, STREAM: allowed[0][STREAM]} in allowed


def _run_and_plan(entry: _Line, line: str, path: Path) -> tuple[str, Plan]:
    """Returns what the first line names the run by, and the plan in it."""
    is_older = entry.previous == GENESIS and entry.step is not None and entry.schema_version is None
    version = 0 if is_older else entry.schema_version
    if type(version) is int and version != LEDGER_VERSION:
        wrote = "dpft 0.3.0 or before" if version < LEDGER_VERSION else "a later dpft"
        raise InputError(
            f"{path} must be a ledger of schema_version {LEDGER_VERSION}, got one that {wrote}"
            " wrote; account for it by that version."
        )
    run_id, written = entry.run_id, entry.plan
    if isinstance(run_id, str) and re.fullmatch("[0-9a-f]{32}", run_id):
        try:
            if isinstance(written, dict) and line == first_line(run_id, written, entry.clipper):
                plan = read_plan(written)
                plan.entry_at(0)  # Its numbers go together.
                return run_id, plan
        except (InputError, OverflowError, RecursionError, TypeError, ValueError):
            pass
    raise StateError(
        f"{path}, line 1: the ledger is broken here (expected the line with the run's plan, after"
        " which all others come); it was edited, reordered or cut. Put the ledger back as it was."
    )


def check_ledger(record: LedgerRecord, plan: PrivacyPlan) -> None:
    """Refuses a ledger that is not that of a finished run of ``plan``.

    Steps that were taken again with new noise after a crash make it longer than the plan, or
    shorter, where a stream that broke off cost more steps than it took.
    """
    if record.plan != plan:
        raise StateError(
            "the ledger's first line must hold the plan of the run, got another; it was changed"
            " since. Put the ledger back as it was."
        )
    if not record.closed or not plan.may_end_after(record.streams):
        raise StateError(
            f"the ledger must hold {plan.steps} steps and be closed, got {record.steps} steps"
            f"{'' if record.closed else ', not closed'}; it was changed since. Put the ledger back"
            " as it was."
        )


@dataclass(frozen=True, order=True, kw_only=True)
class Noise:
    """What the cost of one noisy step depends on."""

    noise_multiplier: float
    sample_rate: float
    threshold_delta: float = 0.0
    """What of delta goes beside the noise, to the threshold of a histogram."""


def steps_taken(
    record: LedgerRecord, path: Path, *, planned: Noise | None = None
) -> dict[Noise, int]:
    """Returns how many Poisson-sampled Gaussians bound the steps taken, by their noise.

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
        StateError: A line is of a mechanism that cannot be accounted for; named by number.
    """
    plan = record.plan
    mechanism = plan.mechanism if isinstance(plan, PrivacyPlan) else DPSGD()
    streams: dict[Noise, Counter[Any]] = {}
    for step, entry in enumerate(record.mechanisms, start=1):
        noise = _noise(entry, mechanism, path, record.line_of(step))
        streams.setdefault(noise, Counter())[stream_of(entry)] += 1
    if record.counted_steps > record.steps:
        streams.setdefault(_costliest(streams, path, planned), Counter())["another"] += 1
    return {
        noise: mechanism.compositions(taken.values()) for noise, taken in sorted(streams.items())
    }


def as_mechanisms(taken: Mapping[Noise, int], delta: float) -> tuple[SampledGaussian, ...]:
    """Returns steps taken as mechanisms to account for at what thresholds leave of ``delta``.

    Raises:
        InputError: ``delta`` is out of range, or thresholds leave nothing of it.
    """
    thresholds = thresholds_delta(taken)
    if thresholds >= delta:
        raise InputError(
            f"delta must be above {thresholds:.4g}, which the thresholds of tokenizers take of it,"
            f" got {delta:.4g}; give a larger one."
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


def added_up(*taken: Mapping[Noise, int]) -> dict[Noise, int]:
    """Returns the steps of several runs together; those of equal noise add up."""
    counts: Counter[Noise] = Counter()
    for steps in taken:
        counts.update(steps)
    return dict(sorted(counts.items()))


def thresholds_delta(taken: Mapping[Noise, int]) -> float:
    """Returns what the thresholds of histograms among these steps take of delta."""
    return math.fsum(noise.threshold_delta * steps for noise, steps in taken.items())


def _noise(entry: Mapping[str, Any], mechanism: Mechanism, path: Path, line: int) -> Noise:
    if entry.get("name") in (HISTOGRAM, COUNTS):
        return _noise_of_histogram(entry, path, line)
    noise, rate = (_number(entry.get(name)) for name in ("noise_multiplier", "sample_rate"))
    if entry.get("name") == mechanism.entry_name and 0 < noise < math.inf and 0 < rate <= 1:
        return Noise(noise_multiplier=noise, sample_rate=rate)
    raise StateError(
        f"{path}, line {line}: expected a {mechanism.entry_name} with noise_multiplier above 0 and"
        " sample_rate in (0, 1], got another mechanism, which no accountant here can bound. Put the"
        " ledger back as it was."
    )


def _noise_of_histogram(mechanism: Mapping[str, Any], path: Path, line: int) -> Noise:
    try:
        if mechanism["name"] == COUNTS:
            return Noise(noise_multiplier=counts_of(mechanism).noise_multiplier, sample_rate=1.0)
        histogram = histogram_of(mechanism)
    except (ArithmeticError, InputError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}, line {line}: expected a {mechanism['name']} whose numbers go together, got"
            " another one. Put the ledger back as it was."
        ) from error
    return Noise(
        noise_multiplier=histogram.noise_multiplier,
        sample_rate=1.0,
        threshold_delta=histogram.threshold_delta,
    )


def _number(value: Any) -> float:
    """Returns a number as float; not a number where it is none, infinity where it is too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _costliest(counts: Collection[Noise], path: Path, planned: Noise | None) -> Noise:
    if counts:
        return Noise(
            noise_multiplier=min(noise.noise_multiplier for noise in counts),
            sample_rate=max(noise.sample_rate for noise in counts),
            threshold_delta=max(noise.threshold_delta for noise in counts),
        )
    if planned is None:
        raise InputError(
            f"{path} must hold one whole step, got none, so that the noise of the one"
            " step that may have been taken is unknown; go on with the run by resume=RUN."
        )
    return planned
