"""What runs are beside each other, and what they spent: ``dpft report``, tuning_bill.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dpft.records.form import OTHER_KEYS, Limits
from dpft.records.ledger import Calibration
from dpft.records.values import AtLeastOne, Count, Delta, NotNegative, Positive, Versioned


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run on a split, a column for each of keys and each metric."""

    run: str
    """The run's folder."""
    seed: float | str
    """Seed of the initialization."""
    epsilon: float | str
    """What the run reports by itself; empty without privacy."""
    delta: float | str
    """Its delta; empty without privacy."""
    accountant: str
    """Whose bound its epsilon is; empty without privacy."""
    epsilon_with_tokenizer: NotNegative | None = None
    """Epsilon of the training and the model's tokenizer together."""
    delta_with_tokenizer: Delta | None = None
    """The delta at which that holds, the sum of both."""
    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    trainable_parameters: Count
    """Numbers that train."""
    total_parameters: AtLeastOne
    """Numbers of the model."""
    task: str
    """The task."""
    split: str
    """The split, or its part."""
    split_is_public: bool
    """Whether the split may be shown."""
    note: str
    """That epsilon does not cover the scores of a private split; else empty."""
    columns: Annotated[Mapping[str, float | str | bool | None], OTHER_KEYS]
    """The value of one of keys, or of a metric."""


@dataclass(frozen=True, kw_only=True)
class RunsReport(Versioned):
    """Runs beside each other, every score unrounded."""

    keys: tuple[str, ...]
    """Keys of the configuration in which the runs differ."""
    runs: tuple[ComparedRun, ...]
    """A row for each run and split."""
    costs: tuple[str, ...]
    """What all runs cost together, in sentences."""
    left_out: tuple[str, ...]
    """Folders of runs that have not ended."""


@dataclass(frozen=True, kw_only=True)
class NoBound:
    """No bound."""

    error: str
    """Why there is none."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound."""

    private: Literal[True] = True
    """Always: a bound is stated."""
    epsilon: NotNegative
    """The headline: a proven upper bound, unrounded."""
    delta: Positive
    """The delta at which it holds."""
    accountant: str
    """Whose bound it is, or: sum of epsilons."""


@dataclass(frozen=True, kw_only=True)
class BoundedRun(Bound):
    """A private run."""

    run: str
    """Name of the run's folder in the sweep's."""


@dataclass(frozen=True, kw_only=True)
class UnboundedRun:
    """A run without privacy."""

    run: str
    """Name of the run's folder in the sweep's."""
    private: Literal[False] = False
    """Nothing bounds it."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The bill of runs that share records."""

    records: str
    """Which records, in words."""
    unit: str | None
    """Whose records epsilon protects; null of a run that nothing bounds."""
    composed: NoBound | Bound
    """All of them together, or why there is no bound."""
    runs: Annotated[tuple[BoundedRun | UnboundedRun, ...], Limits(min_items=1)]
    """Each run."""


@dataclass(frozen=True, kw_only=True)
class TuningBill(Versioned):
    """What the runs of a sweep have spent, each alone and together."""

    not_counted: tuple[str, ...]
    """Folders that could not be read, whose cost is not in the bill."""
    bills: tuple[Bill, ...]
    """A bill for each set of records."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One drawn trial of a search; private."""

    setting: Mapping[str, Any]
    """Key to its value."""
    noise_multiplier: Positive
    """Of its training."""


@dataclass(frozen=True, kw_only=True)
class Search(Versioned):
    """What a search is bound to once it is drawn; the trials are private."""

    calibration: Calibration
    """Of the whole search."""
    delta: Delta
    """At which its epsilon holds."""
    key: str
    """In hexadecimal: by what ``fingerprint`` knows the training records again."""
    fingerprint: str
    """Of the training records."""
    trials: tuple[Trial, ...]
    """All that were drawn."""
