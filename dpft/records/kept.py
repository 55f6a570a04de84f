"""Small files that a run, or a sweep, keeps for itself: checkpoints' state, private/ and trackers.

Private are state.json of a checkpoint (how far a run had come, and what it is bound to when it
goes on), by what a run knows its records again, each step's scores of canaries and its signal, and
how the jobs of a sweep ended; public is how far a tracker has come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from dpft.records.form import OTHER_KEYS, AtLeastOne, Count, Versioned
from dpft.records.promises import Process


@dataclass(frozen=True, kw_only=True)
class Fingerprint(Versioned):
    """private/fingerprint: by what a run knows its training records again."""

    key: str
    """Random, in hexadecimal."""
    hmac: str
    """Of the records under the key: a plain hash would tell whoever has it and a guess."""


@dataclass(frozen=True, kw_only=True)
class TrackerState(Versioned):
    """How far a tracker has come, over all sessions of its run."""

    run_id: str
    """What the tracker calls the run."""
    last_step: Count = 0
    """That of the last point; replayed steps up to it are not written again."""
    concluded: bool = False
    """Whether it has what is known at the end."""


@dataclass(frozen=True, kw_only=True)
class EndedJob(Versioned):
    """private/exit_codes/NUMBER.json of a sweep: how a job of it ended."""

    command: str
    """Tells the jobs of one command from those of an earlier one in the same folder."""
    exit_code: int
    """As a process has it."""
    folder: str
    """The run's, seen from the sweep's."""
    log: str | None = None
    """Where a submitted job says what it says."""


@dataclass(frozen=True, kw_only=True)
class StepEntry:
    """A line of private/steps.jsonl, as far as a report reads it."""

    step: AtLeastOne
    """Number of the step."""
    processes: Process | None = None
    """The processes that took it; absent where they are those of the step before."""
    others: Annotated[Mapping[str, Any], OTHER_KEYS]
    """By what a step that is taken again is held against its first time."""


@dataclass(frozen=True, kw_only=True)
class WhiteBoxLine:
    """A line of private/white_box.jsonl: what a step's noisy gradient has of every canary's own."""

    step: AtLeastOne
    """Number of the step."""
    now: tuple[float, ...]
    """Along each canary's gradient at the step's own weights."""
    before: tuple[float, ...]
    """Along its gradient before training."""


@dataclass(frozen=True, kw_only=True)
class StepMeasured:
    """A line of private/diagnostics.jsonl, as far as a report of many runs reads it."""

    step: int
    """Number of the step."""
    signal_to_noise: Any | None = None
    """Length of the clipped sum over that of its noise; of the first steps alone."""
    others: Annotated[Mapping[str, Any], OTHER_KEYS]
    """What else was measured."""


@dataclass(frozen=True, kw_only=True)
class KnownLedger:
    """The ledger as a checkpoint was written after it."""

    lines: Count
    """Its whole lines."""
    head: str
    """SHA-256 of the last one."""
    position: Count | None = None
    """Steps of the ledger that the weights stand at; more than their own where some were taken
    again. Absent in files of dpft 0.2.0 or before."""


@dataclass(frozen=True, kw_only=True)
class BoundRun:
    """What a run is bound to when it goes on; of a private run all but ``clipping``."""

    plan: Any | None = None
    """The plan in the ledger's first line."""
    clipping: Any | None = None
    """What is drawn and how it is clipped, of a run that adds no noise."""
    environment: Mapping[str, Any] | None = None
    """What the bits of a step's sum depend on."""
    promises: Mapping[str, bool] | None = None
    """Statements of the report that rest on the configuration alone."""
    run_id: str | None = None
    """What names the run in its ledger."""
    frozen: Mapping[str, str] | None = None
    """Digests, before the first step, of what is released and nothing moves."""
    ledger: KnownLedger | None = None
    """The ledger as it was then."""
    stream: Count = 0
    """How many steps were in it when the stream of noise began that the next step is in."""
    loss_scale: Mapping[str, Any] | None = None
    """Where an adapted loss scale stands."""


@dataclass(frozen=True, kw_only=True)
class CheckpointState(Versioned):
    """All of a checkpoint but its tensors and its secret keys."""

    step: Count
    """Steps that the weights had taken."""
    scheduler_step: int
    """Steps of the learning rate's schedule."""
    average: Mapping[str, Any] | None = None
    """Which average of the weights is among its tensors; absent where none is."""
    run: BoundRun
    """What the run is bound to."""
    shards: int | None = None
    """Into how many shards its tensors are cut; absent where they are whole."""
    keys_changed: Count | None = None
    """When the file of secret keys was last changed, in nanoseconds."""
    checksums: Mapping[str, str]
    """File to SHA-256."""
    checksum: str | None = None
    """Of all the rest of this file."""


@dataclass(frozen=True, kw_only=True)
class ShuffledState:
    """generators.json of an ordinary run: where its generators stand."""

    order: str
    """Of the order of records, in hexadecimal."""
    waiting: tuple[int, ...]
    """Units of this epoch that no step has drawn yet."""
    dropout: str
    """Of torch's own generator, in hexadecimal."""
