"""What ``dpft account`` prints: of given numbers, of batch sizes, of one run or several."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dpft.records.bounds import DeltaSource, Epsilons, Promise, Relation, Sampler
from dpft.records.form import Limits
from dpft.records.ledger import Calibration, LedgerHead
from dpft.records.values import (
    AtLeastOne,
    Count,
    Delta,
    NotNegative,
    Positive,
    Rate,
    RunId,
    Versioned,
)


@dataclass(frozen=True, kw_only=True)
class Cost(Promise):
    """Epsilon, whose bound it is, and what every accountant answers."""

    epsilons: Epsilons
    """Every accountant's answer, by its name."""


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
    """What its first line names the run by, 32 hexadecimal digits. Absent in a ledger of dpft 0.2.0
    or before."""
    closed: bool
    """Whether its last line is the closing one."""
    torn: bool
    """Whether a line was being written when the run broke off."""
    end: str
    """What shows that no step is missing; unproven: nothing does."""
    head_checked: Literal[True] | None = None
    """With head=: its head is the one that was given."""
    witnessed_lines: AtLeastOne | None = None
    """With witness=: the most lines that the file has a head of."""


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
class BatchSizePoint:
    """What one batch size takes."""

    expected_batch_size: Positive
    """Mean size of a draw."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    steps: AtLeastOne
    """Noisy steps."""
    noise_multiplier: Positive | None = None
    """The least noise multiplier for the target."""
    accountant: str | None = None
    """Whose bound chose it."""
    epsilon: NotNegative | None = None
    """The bound."""
    effective_noise_multiplier: Positive | None = None
    """Noise multiplier over sample rate."""
    square_root_rule: Positive | None = None
    """What the square-root rule would give."""
    error: str | None = None
    """Why none was found."""


@dataclass(frozen=True, kw_only=True)
class FixedSteps:
    """At fixed steps."""

    steps: Positive
    """The steps."""
    points: tuple[BatchSizePoint, ...]
    """A point for each batch size."""


@dataclass(frozen=True, kw_only=True)
class FixedEpochs:
    """At fixed epochs."""

    epochs: Positive
    """The epochs."""
    points: tuple[BatchSizePoint, ...]
    """A point for each batch size."""


@dataclass(frozen=True, kw_only=True)
class CostOfBatchSizes(Versioned):
    """Noise over batch sizes."""

    eps: Positive
    """The target epsilon."""
    delta: Delta
    """The delta at which epsilon holds."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    sampler: Sampler
    """How units were drawn."""
    square_root_rule: str
    """When the rule holds."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    fixed_steps: FixedSteps | None = None
    """At fixed steps."""
    fixed_epochs: FixedEpochs | None = None
    """At fixed epochs."""


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
class CostOfNumbers(Cost, Versioned):
    """The cost of numbers that were given."""

    private: Literal[True] = True
    """Noise is added."""
    delta_source: DeltaSource | None = None
    """given, by privacy.delta; or the rule of task.default_delta: own_data, 1/(10n) rounded down,
    or published, the papers' 1/(2n)."""
    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    steps: Count
    """Planned noisy steps."""
    num_examples: AtLeastOne | None = None
    """Number of examples, or of units, taken as public."""
    expected_batch_size: Positive | None = None
    """Units of a step in expectation."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    sampler: Sampler
    """How units were drawn."""
    participations: AtLeastOne | None = None
    """Most steps that a unit can be in, which are those that cost. Absent: all."""
    calibration: Calibration | None = None
    """What chose the noise multiplier, so that any machine reports the same epsilon. Absent where
    the noise was given."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    curve: tuple[CostAtSteps, ...] | None = None
    """Epsilon over growing numbers of steps; with curve=true."""
