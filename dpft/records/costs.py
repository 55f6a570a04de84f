"""Output of accounting and comparing: ``dpft account`` and ``dpft report``.

Epsilon as accountants answer it, the bound that is reported, and what several runs cost together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dpft.records.form import (
    OTHER_KEYS,
    AtLeastOne,
    Count,
    Delta,
    Limits,
    NotNegative,
    Positive,
    Rate,
    RunId,
    Versioned,
)
from dpft.records.ledger import Calibration, LedgerHead

DeltaSource = Annotated[str, Limits(choices=("given", "own_data", "published"))]
Relation = Annotated[str, Limits(choices=("add_or_remove_one",))]
Sampler = Annotated[str, Limits(choices=("poisson", "cyclic_poisson", "mixed", "none"))]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval in which epsilon is."""

    lower: float
    """Proven lower bound."""
    estimate: float
    """Estimate."""
    upper: NotNegative
    """Proven upper bound."""


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """No answer."""

    error: str
    """Why there is none."""


Answer = NotNegative | Interval | NoAnswer
Epsilons = Mapping[str, Answer]
"""An upper bound (rdp, pld), an estimate (gdp), an interval (prv), or why there is none."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Epsilon, and whose bound it is."""

    epsilon: NotNegative
    """The headline: a proven upper bound, unrounded."""
    delta: Delta
    """The delta at which epsilon holds."""
    accountant: str
    """Whose bound the headline is."""


@dataclass(frozen=True, kw_only=True)
class Cost(Promise):
    """Epsilon, whose bound it is, and what every accountant answers."""

    epsilons: Epsilons
    """Every accountant's answer, by its name."""


@dataclass(frozen=True, kw_only=True)
class CostOfPlan(Cost):
    """What a plan costs, and the plan: what answers on a run and on numbers alone share."""

    delta_source: DeltaSource | None = None
    """given, by privacy.delta; or the rule of task.default_delta: own_data, 1/(10n) rounded down,
    or published, the papers' 1/(2n)."""
    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    steps: Count
    """Planned noisy steps."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    sampler: Sampler
    """How units were drawn."""
    calibration: Calibration | None = None
    """What chose the noise multiplier, so that any machine reports the same epsilon. Absent where
    the noise was given."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class StepsOfNoise:
    """Steps of one noise."""

    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    steps: AtLeastOne
    """How many."""
    threshold_delta: Positive | None = None
    """What a threshold takes of delta."""


@dataclass(frozen=True, kw_only=True)
class LedgerAsRead(LedgerHead):
    """The ledger as it was read."""

    run_id: RunId | None = None
    """What its first line names the run by, 32 hexadecimal digits."""
    closed: bool
    """Whether its last line is the closing one."""
    torn: bool
    """Whether a line was being written when the run broke off."""
    end: str
    """What shows that no step is missing; unproven: nothing does."""
    head_checked: Literal[True] | None = None
    """With head=: its head is the one that was given."""


@dataclass(frozen=True, kw_only=True)
class RunCost(Cost, Versioned):
    """What a run has spent by its ledger."""

    run: str
    """The run's folder, as it was given."""
    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    noise_multiplier: Positive | None = None
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate | None = None
    """Probability with which each unit is in a step."""
    steps: Count | None = None
    """Planned noisy steps."""
    num_examples: AtLeastOne | None = None
    """Number of examples, or of units, taken as public."""
    expected_batch_size: Positive | None = None
    """Units of a step in expectation."""
    unit: str | None = None
    """Whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation | None = None
    """How neighboring data sets differ."""
    sampler: Sampler
    """How units were drawn."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    reproducible: Literal[True] | None = None
    """A test seed made the noise, so nothing is protected."""
    mechanisms: tuple[StepsOfNoise, ...]
    """What was done, by noise."""
    steps_taken: Count
    """Noisy steps that are accounted for."""
    unit_definition: str | None = None
    """What the unit is, in words that follow: the unit is."""
    ledger: LedgerAsRead
    """The ledger as it was read."""


@dataclass(frozen=True, kw_only=True)
class SimpleComposition:
    """The sums of what each run reports by itself."""

    epsilon: NotNegative
    """Sum of epsilons."""
    delta: NotNegative
    """Sum of deltas."""


@dataclass(frozen=True, kw_only=True)
class CostOfRuns(Cost, Versioned):
    """What several runs on the same data have spent together."""

    runs: Annotated[tuple[RunCost, ...], Limits(min_items=1)]
    """Each run by itself."""
    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    sampler: Sampler
    """How units were drawn."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    steps_taken: Count
    """Noisy steps of all runs."""
    simple_composition: SimpleComposition
    """The sums of what each run reports by itself."""
    same_data: str
    """That the runs share data is the word of whoever asked."""
    left_out: tuple[str, ...]
    """Folders that are not counted, each with the reason."""


@dataclass(frozen=True, kw_only=True)
class CostAtSteps:
    """A point."""

    steps: AtLeastOne
    """Steps."""
    epsilon: NotNegative
    """The headline: a proven upper bound, unrounded."""
    accountant: str
    """Whose bound the headline is."""
    epsilons: Epsilons
    """Every accountant's answer, by its name."""


@dataclass(frozen=True, kw_only=True)
class CostOfNumbers(CostOfPlan, Versioned):
    """The cost of numbers that were given."""

    private: Literal[True] = True
    """Noise is added."""
    num_examples: AtLeastOne | None = None
    """Number of examples, or of units, taken as public."""
    expected_batch_size: Positive | None = None
    """Units of a step in expectation."""
    participations: AtLeastOne | None = None
    """Most steps that a unit can be in, which are those that cost. Absent: all."""
    curve: tuple[CostAtSteps, ...] | None = None
    """Epsilon over growing numbers of steps; with curve=true."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A finished run, with a column for each score and for each key in which the runs differ."""

    run: str
    """The run's folder."""
    epsilon: NotNegative | None
    """The cost of the run by its ledger, with the tokenizer's if the same records made it; null
    without privacy."""
    delta: Delta | None
    """The delta at which epsilon holds; null without privacy."""
    accountant: str | None
    """Whose bound epsilon is; null without privacy."""
    private: bool
    """Whether epsilon protects anybody: false without noise, and if a test seed made the noise."""
    trainable_parameters: Count
    """Number of trained parameters."""
    total_parameters: AtLeastOne
    """Number of the model's parameters."""
    columns: Annotated[Mapping[str, float | str | bool | None], OTHER_KEYS]
    """The value of a key, a public score after fine-tuning, before.SCORE, published.SCORE."""


@dataclass(frozen=True, kw_only=True)
class RunsReport(Versioned):
    """Finished runs, their scores unrounded."""

    runs: tuple[ComparedRun, ...]
    """A row for each run."""
    left_out: tuple[str, ...]
    """Folders of runs that have not ended."""


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
