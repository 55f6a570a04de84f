"""state.json of a checkpoint: how far a run had come, and what it is bound to when it goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpft.records.values import Count, Versioned


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
