"""Lines of ledger.jsonl: the plan, a noisy step, the closing line.

The plan is every public number that epsilon rests on. ``dpft.privacy.plan`` says what follows from
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dpft.records.form import (
    AtLeastOne,
    Count,
    Delta,
    Digest,
    Limits,
    NotNegative,
    Positive,
    Rate,
    RunId,
    null,
)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What chose the noise multiplier, so that any machine reports the same epsilon.

    Absent where the noise was given.
    """

    accountant: str
    """The accountant that calibrated."""
    epsilon: NotNegative
    """The upper bound that it reports for exactly the planned steps."""
    grid: str
    """The precision at which it ran, in words."""
    target: Positive | None = null()
    """The epsilon that was asked for; null for a search."""


@dataclass(frozen=True, kw_only=True)
class HistogramNumbers:
    """What the noise on a histogram of words is."""

    noise_std: Positive
    """Standard deviation of the noise on each count."""
    noise_multiplier: Positive
    """noise_std over l2_cap."""
    l2_cap: Positive
    """k: a unit's counts are scaled down to this L2 norm."""
    linf_cap: Positive
    """m: a unit moves one word's count by no more."""
    words_per_record: AtLeastOne
    """N: no more words of a record, or unit, are counted."""
    threshold: NotNegative
    """A word is kept whose noisy count reaches it."""
    delta: Delta
    """The delta at which epsilon holds."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    num_examples_source: str
    """Who says how many examples there are."""


@dataclass(frozen=True, kw_only=True)
class GaussianHistogram(HistogramNumbers):
    """The histogram of a tokenizer's run."""

    name: Literal["gaussian_histogram"] = "gaussian_histogram"
    """Name of the mechanism."""


@dataclass(frozen=True, kw_only=True)
class GaussianCounts:
    """Counts of public cells, every one of them under noise."""

    name: Literal["gaussian_counts"] = "gaussian_counts"
    """Name of the mechanism."""
    noise_std: Positive
    """Standard deviation of the noise on each count."""
    noise_multiplier: Positive
    """noise_std over l2_cap."""
    l2_cap: Positive
    """Most that a unit moves the counts, in L2 norm."""
    cells: AtLeastOne
    """Number of cells: the public product of the columns' values."""
    delta: Delta
    """The delta at which the plan's epsilon holds."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    num_examples_source: str
    """Who says how many examples there are."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """A step of training."""

    name: Literal["poisson_sampled_gaussian"] = "poisson_sampled_gaussian"
    """Name of the mechanism."""
    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    sensitivity: Positive
    """By how much one unit moves the sum at most."""


@dataclass(frozen=True, kw_only=True)
class BandedGaussian:
    """A step of training whose noise hangs together with that of other steps."""

    name: Literal["banded_gaussian"] = "banded_gaussian"
    """Name of the mechanism."""
    noise_multiplier: Positive
    """Standard deviation of the fresh noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit of the step's group is in it."""
    sensitivity: Positive
    """By how much one unit moves the sum at most."""
    bands: AtLeastOne
    """Steps over which noise hangs together, and number of groups."""
    stream: Count
    """How many steps were in the ledger when the step's stream of noise began."""


@dataclass(frozen=True, kw_only=True)
class PlannedPhase:
    """A stretch of steps under one method and one clipping norm."""

    method: str
    """What trains."""
    steps: AtLeastOne
    """Noisy steps of the phase."""
    max_grad_norm: Positive
    """Clipping norm of the phase."""
    sensitivity: Positive
    """By how much one unit moves the sum at most."""


@dataclass(frozen=True, kw_only=True)
class SpentElsewhere:
    """What the same records spent before on a histogram, from its ledger."""

    run_id: str
    """What names the histogram's ledger."""
    lines: AtLeastOne
    """Lines of it."""
    head: str
    """Hash of the last of them."""
    delta: Delta
    """Delta of the histogram."""


@dataclass(frozen=True, kw_only=True)
class SpentBefore(SpentElsewhere):
    """What the same records spent before, on the run's tokenizer, from its ledger."""

    mechanism: GaussianHistogram
    """The one step of its ledger."""


@dataclass(frozen=True, kw_only=True)
class SpentOnCounts(SpentElsewhere):
    """What the same records spent before, on the histogram of a synthesis, from its ledger."""

    mechanism: GaussianCounts
    """The one step of its ledger."""


@dataclass(frozen=True, kw_only=True)
class PlannedPromise:
    """What both kinds of plan promise, and to whom."""

    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    delta: Delta
    """The promised delta."""
    delta_source: str
    """given, or the rule by which delta follows from num_examples."""
    unit: str
    """Whose contribution is hidden: example, or a column's name."""
    neighboring_relation: str
    """How neighboring data sets differ."""
    sampler: str
    """How units are drawn."""
    reproducible: bool
    """Whether a test's seed made the noise predictable, so that nothing is protected."""
    data_id: str | None
    """privacy.data_id: the owner's public name of the data."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(PlannedPromise):
    """The plan of a training: Poisson-sampled Gaussian noise in each step."""

    unit_definition: str
    """What the unit is, in words that follow: the unit is."""
    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit is in a step."""
    steps: AtLeastOne
    """Noisy steps planned."""
    expected_batch_size: AtLeastOne
    """Divisor of each noisy sum."""
    clipping: str
    """How gradients are clipped."""
    mechanism: Mapping[str, Any] | None = None
    """How draws and noise of steps hang together, by name, and its numbers. Absent: dp_sgd, where
    no step knows another's."""
    accountant: str
    """Whose bound leads a report."""
    is_trial: bool
    """Whether it is one of a secret number of trials of a search, so that no epsilon follows from
    this ledger."""
    phases: Annotated[tuple[PlannedPhase, ...], Limits(min_items=1)]
    """Stretches of steps under one method and one clipping norm."""
    calibration: Calibration | None
    """What chose the noise multiplier; null where it was given."""
    tokenizer: SpentBefore | None
    """What the same records spent before, on the run's tokenizer, from its ledger."""
    counts: SpentOnCounts | None = None
    """What the same records spent before, on the histogram of a synthesis, from its ledger: the
    epsilon of this ledger is of both. Absent where the run is of no synthesis with a condition."""


@dataclass(frozen=True, kw_only=True)
class HistogramPlan(PlannedPromise):
    """The plan of one histogram: of a private vocabulary's words, or of public cells."""

    unit_definition: str | None
    """What the unit is, in words that follow: the unit is."""
    histogram: GaussianHistogram | GaussianCounts
    """The one step."""


@dataclass(frozen=True, kw_only=True)
class ClipperChoice:
    """How the gradients of a phase are clipped."""

    engine: Literal["book_keeping", "rows"]
    """The clipping engine."""
    modules: Mapping[str, Count]
    """For book_keeping: number of modules by how their parameters are recorded."""
    mapped: tuple[str, ...]
    """Paths of the modules that are mapped over the rows of a micro-batch."""


@dataclass(frozen=True, kw_only=True)
class FirstLine:
    """The first line: what the run is bound to, and what names it.

    Epsilon follows from it and the steps alone.
    """

    run_id: RunId
    """128 random bits of the run's own, public and of no key."""
    schema_version: Literal[2] = 2
    """Version of the file's form. A reader refuses another one."""
    previous: Literal["0000000000000000000000000000000000000000000000000000000000000000"] = (
        "0000000000000000000000000000000000000000000000000000000000000000"
    )
    """64 zeros: no line stands before."""
    plan: TrainingPlan | HistogramPlan
    """Every public number that epsilon rests on."""
    clipper: tuple[ClipperChoice, ...] | None = None
    """The result of the clipper's self-check on synthetic records, one per phase; absent in a line
    of dpft 0.3, and if nothing was clipped."""


@dataclass(frozen=True, kw_only=True)
class ClosingLine:
    """The last line of a run that ended as planned."""

    closed: Literal[True] = True
    """The run has ended."""
    previous: Digest
    """SHA-256 of the line before."""
    released: Digest | None = None
    """SHA-256 over the digests in model/tensors.json: of all released tensors, of an adapter's
    settings and base too; of a synthesis's histogram that of counts.json. Absent in a tokenizer's
    run."""


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """A noisy step."""

    step: AtLeastOne
    """Number of the noisy step, from 1."""
    previous: Digest
    """SHA-256 of the line before."""
    mechanism: SampledGaussian | BandedGaussian | GaussianHistogram | GaussianCounts
    """What the accountant needs of the step."""


@dataclass(frozen=True, kw_only=True)
class LedgerHead:
    """The ledger as it was when this was written."""

    lines: Count
    """Whole lines in ledger.jsonl, the first and the closing one included."""
    head: Digest
    """SHA-256 of the last line, 64 hexadecimal digits."""
