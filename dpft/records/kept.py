"""Small files that a run, or a sweep, keeps for itself.

Private are by what a run knows its records again, each step's scores of canaries and its signal,
and how the jobs of a sweep ended; public are how far a tracker has come and the digests of the
released tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from dpft.records.form import OTHER_KEYS
from dpft.records.promises import Process
from dpft.records.values import AtLeastOne, Count, Versioned


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
