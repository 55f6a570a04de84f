"""privacy.json: what a run promises, by whose accounting, and what of it can be relied on.

Four kinds of runs write one: training with privacy and without, and vocabularies made with privacy
and without; beside synthetic records stands a statement. The file records what was printed when it
was written. Commands that print epsilon compute it from the ledger (``dpft.runs.guarantee``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

from dpft.errors import InputError, StateError
from dpft.files import read_json
from dpft.records.audits import ExposureTable, GuessesInShort
from dpft.records.costs import CostOfPlan, DeltaSource, Promise, Relation, Sampler
from dpft.records.form import (
    AtLeastOne,
    Count,
    Day,
    Delta,
    Digest,
    Limits,
    Misfit,
    NotNegative,
    Part,
    Positive,
    Rate,
    Rule,
    Ruled,
    Rules,
    Together,
    Versioned,
    parse,
    read_record,
)
from dpft.records.ledger import HistogramNumbers, LedgerHead
from dpft.records.scores import Decoding

Clipping = Annotated[str, Limits(choices=("flat", "automatic", "automatic_v", "per_layer"))]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of steps in which the same parameters train."""

    method: str
    """What trains in it."""
    steps: Count
    """Planned steps of the phase."""
    max_grad_norm: Positive
    """Clipping norm."""
    sensitivity: Positive
    """By how much one unit moves a step's sum at most; what the noise is scaled by."""


Phases = Annotated[tuple[Phase, ...], Limits(min_items=1)]
OWN_RECORDS: Literal["the run's own records"] = "the run's own records"
Prompts = Literal["the user's", "the run's own records", "none"]


@dataclass(frozen=True, kw_only=True)
class TokenizerCost:
    """What the model's private tokenizer cost by itself."""

    epsilon: NotNegative
    """Of the tokenizer alone."""
    delta: Delta
    """At which it holds."""
    ledger: LedgerHead
    """The ledger of the tokenizer's run."""
    simple_composition: NotNegative
    """The sum of both epsilons, never below epsilon_with_tokenizer."""


@dataclass(frozen=True, kw_only=True)
class WithTokenizer(Ruled):
    """What a training and its private tokenizer cost together, all three keys or none."""

    RULES: ClassVar[Rules] = (
        Together(("epsilon_with_tokenizer", "delta_with_tokenizer", "tokenizer")),
    )
    epsilon_with_tokenizer: NotNegative | None = None
    """Epsilon of the training and the model's tokenizer together."""
    delta_with_tokenizer: Delta | None = None
    """The delta at which that holds, the sum of both."""
    tokenizer: TokenizerCost | None = None
    """What the model's private tokenizer cost by itself."""


@dataclass(frozen=True, kw_only=True)
class SeedMarked(Ruled):
    """Whether somebody is protected: not where a test's seed made the noise."""

    RULES: ClassVar[Rules] = (
        Rule(when=Part(requires=("reproducible",)), then=Part(values={"private": False})),
    )
    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    reproducible: Literal[True] | None = None
    """A test seed made the noise, so nothing is protected."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """How many numbers a model has, and how many of them train."""

    trainable_parameters: Count
    """Numbers that train."""
    new_parameters: Count
    """Numbers of task heads that the checkpoint lacks."""
    total_parameters: AtLeastOne
    """Numbers of the model."""


@dataclass(frozen=True, kw_only=True)
class PlanPromise(CostOfPlan):
    """What a plan promises: what privacy.json and ``dpft plan`` share."""

    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    expected_batch_size: Positive
    """Units of a step in expectation."""
    max_grad_norm: Positive
    """Clipping norm of the first phase."""
    sensitivity: Positive
    """Sensitivity of the first phase."""
    rounding_headroom: NotNegative
    """Share of the clipping norm that is kept for rounding."""
    clipping: Clipping
    """How gradients are clipped."""
    unit_definition: str
    """What the unit is, in words that follow: the unit is."""
    phases: Phases
    """The phases of the run."""
    mechanism: Mapping[str, Any] | None = None
    """How draws and noise of steps hang together, by name, and its numbers. Absent: dp_sgd, where
    no step knows another's."""
    participations: AtLeastOne | None = None
    """Most planned steps that a unit can be in, which are those that cost. Absent: all."""


@dataclass(frozen=True, kw_only=True)
class NoPromise:
    """What privacy.json and ``dpft plan`` say with ``privacy=none``; there is no epsilon."""

    private: Literal[False] = False
    """No privacy."""
    num_examples: AtLeastOne
    """Training examples."""
    expected_batch_size: AtLeastOne
    """Examples of a step."""
    steps: Count
    """Planned steps."""
    sampler: Literal["poisson"] | None = None
    """How examples were drawn; where examples are clipped without noise alone."""
    sample_rate: Rate | None = None
    """Probability with which each example is in a step; where examples are clipped without noise
    alone."""
    max_grad_norm: Positive | None = None
    """Clipping norm of the first phase; where examples are clipped without noise alone."""
    rounding_headroom: NotNegative | None = None
    """Share of the clipping norm that is kept for rounding; where examples are clipped without
    noise alone."""
    clipping: Clipping | None = None
    """How gradients are clipped; where examples are clipped without noise alone."""
    phases: Phases | None = None
    """The phases of the run; where examples are clipped without noise alone."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the released model was chosen within one epsilon."""

    theorem: str
    """What bounds the choice."""
    eta: Annotated[float, Limits(above=-1)]
    """Shape of the random number of trials."""
    gamma: Delta
    """Scale of the random number of trials."""
    expected_trials: Annotated[float, Limits(minimum=1)]
    """Trials in expectation."""
    search_space: Mapping[str, tuple[Any, ...]]
    """Key to the values that a trial could draw."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What `dpft audit` found that follows from canaries alone and may be released, by audit."""

    one_run: GuessesInShort | None = None
    """Of audit=one_run: the strongest view, and all in short."""
    exposure: ExposureTable | None = None
    """Of audit=exposure."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A group of processes that took steps of the run."""

    world_size: AtLeastOne
    """How many processes."""
    sharding: str | None = None
    """What each held of the model, in words."""
    network: str | None = None
    """What was between them, in words."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions with which the run was begun, by package."""

    dpft: str
    """Of dpft."""
    torch: str | None = None
    """Of torch."""
    transformers: str | None = None
    """Of transformers."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """When and with what a run was begun."""

    date: Day | None = None
    """The UTC day on which the run was begun."""
    versions: Versions | None = None
    """Versions with which the run was begun, by package."""
    commit: str | None = None
    """Commit of the git checkout, -dirty behind it where files differ."""

    @property
    def when(self) -> dict[str, Any]:
        """These fields alone, of a record that has others too."""
        return {"date": self.date, "versions": self.versions, "commit": self.commit}


@dataclass(frozen=True, kw_only=True)
class StartingModel:
    """What an earlier private training of the model promised its own records."""

    accountant: str | None = None
    """Whose bound it is."""
    data: str | None = None
    """Task and source of its records."""
    delta: float
    """The delta that it promised."""
    delta_with_tokenizer: float | None = None
    """The delta that it promised together with its tokenizer."""
    epsilon: NotNegative
    """The epsilon that it promised."""
    epsilon_with_tokenizer: NotNegative | None = None
    """The epsilon that it promised together with its tokenizer."""
    model: str | None = None
    """The model that was trained."""
    neighboring_relation: str | None = None
    """How its neighboring data sets differ."""
    num_examples: AtLeastOne | None = None
    """Number of its examples, or units, taken as public."""
    private: bool | None = None
    """Whether it was private."""
    unit: str | None = None
    """Whose contribution it hides."""
    unit_definition: str | None = None
    """What its unit is."""
    ledger: Digest
    """Head of its ledger."""


@dataclass(frozen=True, kw_only=True)
class BegunFile(Begun, Versioned):
    """private/begun.json: when and with what a run was begun, and by which command."""

    starting_models: tuple[StartingModel, ...] | None = None
    """Private trainings that the model has behind it, the last one first."""
    asked: str | None = None
    """What tells the configuration that was asked for from any other."""


@dataclass(frozen=True, kw_only=True)
class Origin(Begun):
    """Where a run comes from, and what was found out about it later."""

    audited: Audited | None = None
    """What `dpft audit` found that follows from canaries alone and may be released, by audit."""
    processes: Annotated[tuple[Process, ...], Limits(min_items=1)] | None = None
    """Groups of processes that took steps; absent where one process took all."""
    model: str
    """The model, as the hub or its folder calls it."""
    data: str
    """Task and source of the records."""
    starting_models: tuple[StartingModel, ...] | None = None
    """Private trainings that the model has behind it, the last one first."""


@dataclass(frozen=True, kw_only=True)
class SpentCurve:
    """Upper bounds of epsilon over the plan's steps; between two points the next one's holds.

    Not of a search.
    """

    steps: tuple[AtLeastOne, ...]
    """Numbers of steps, at most 40."""
    epsilons: tuple[NotNegative, ...]
    """The bound after each."""
    accountants: tuple[str, ...]
    """Whose bound each is."""

    def __post_init__(self) -> None:
        """Refuses lists of which one is shorter."""
        if not len(self.steps) == len(self.epsilons) == len(self.accountants):
            raise ValueError("steps, epsilons and accountants must be as many")


@dataclass(frozen=True, kw_only=True)
class CountedBefore:
    """The histogram of a synthesis, made of the same records before the training."""

    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    ledger: LedgerHead
    """Its ledger as the training's plan names it."""


@dataclass(frozen=True, kw_only=True)
class PrivateRun(PlanPromise, WithTokenizer, SeedMarked, Parameters, Origin, Versioned):
    """A run of `dpft train` with privacy=dp, or what a `dpft tune` published."""

    steps_taken: Count
    """Noisy steps in the ledger, which are those accounted for; more than planned where a resumed
    run took steps anew."""
    noise_source: str
    """What made the noise, in words."""
    dropout_source: str
    """What made dropout masks, in words."""
    num_examples_source: str
    """Who says how many examples there are."""
    ledger: LedgerHead
    """The ledger as it was when this was written."""
    histogram: CountedBefore | None = None
    """Of a synthesis: its histogram, which epsilon covers together with the training's steps."""
    epsilon_curve: SpentCurve | None = None
    """Upper bounds of epsilon over the plan's steps; between two points the next one's holds. Not
    of a search, nor of a synthesis with a histogram."""
    selection: Selection | None = None
    """How the released model was chosen within one epsilon."""


@dataclass(frozen=True, kw_only=True)
class OpenRun(NoPromise, Parameters, Origin, Versioned):
    """A run with privacy=none, clipped or not: there is no epsilon."""


@dataclass(frozen=True, kw_only=True)
class Generated(Versioned):
    """What both kinds of synthetic records come with."""

    steps: Count
    """Planned noisy steps."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    run: str
    """Name of the run's folder, not where it lies."""
    task: str
    """The task whose format the records have."""
    decode: Decoding
    """How texts were chosen."""
    retries: Count
    """How often a text that was no row was written anew at most."""
    records: Count
    """Records that were asked for."""
    unparsed: Count | None = None
    """Texts among them that are no rows."""
    prompts: Prompts
    """Whether the model continued a user's prompts, or the run's own records."""
    notes: tuple[str, ...]
    """What the records cost and what epsilon does not cover, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class GeneratedPrivately(Generated, Promise, WithTokenizer, SeedMarked):
    """What synthetic records of a run with privacy=dp cost, and how their texts were chosen."""

    neighboring_relation: Relation
    """How neighboring data sets differ."""
    sampler: Sampler
    """How units were drawn."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    unit_definition: str
    """What the unit is, in words that follow: the unit is."""
    steps_taken: Count
    """Noisy steps in the ledger, which are those accounted for; more than planned where a resumed
    run took steps anew."""
    ledger: LedgerHead
    """The ledger as it was when this was written."""


@dataclass(frozen=True, kw_only=True)
class GeneratedOpenly(Generated):
    """Synthetic records of a run with privacy=none, and how their texts were chosen."""

    private: Literal[False] = False
    """No privacy."""


@dataclass(frozen=True, kw_only=True)
class MadePieces:
    """What was made of the words; absent while there is no vocabulary."""

    vocab_size: AtLeastOne | None = None
    """Pieces of the vocabulary."""
    tokens: AtLeastOne | None = None
    """Pieces, special tokens and sentinels."""
    tokenizer_sha256: Digest | None = None
    """SHA-256 of tokenizer/tokenizer.json."""


@dataclass(frozen=True, kw_only=True)
class OpenPieces:
    """What was made of the words."""

    vocab_size: AtLeastOne
    """Pieces of the vocabulary."""
    tokens: AtLeastOne
    """Pieces, special tokens and sentinels."""
    tokenizer_sha256: Digest
    """SHA-256 of tokenizer/tokenizer.json."""


@dataclass(frozen=True, kw_only=True)
class VocabularyRun(Begun, Versioned):
    """What both kinds of runs say."""

    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    algorithm: Annotated[str, Limits(choices=("unigram", "bpe", "char"))]
    """How pieces were made."""
    data: str
    """Task and source of the records."""


@dataclass(frozen=True, kw_only=True)
class PrivateVocabulary(VocabularyRun, HistogramNumbers, SeedMarked, MadePieces):
    """One noisy histogram of words."""

    mechanism: Literal["gaussian_histogram"] = "gaussian_histogram"
    """What was released."""
    epsilon: NotNegative
    """Epsilon of the noise and the threshold together, exact and unrounded."""
    epsilon_classical: NotNegative
    """Epsilon by the paper's formula, which is no bound above 1."""
    accountant: Literal["gaussian"] = "gaussian"
    """The exact epsilon of the Gaussian mechanism."""
    sampler: Literal["none"] = "none"
    """Nothing is sampled."""
    sample_rate: Annotated[float, Limits(minimum=1, maximum=1)] = 1.0
    """Every unit is counted."""
    steps: Literal[1] = 1
    """One release."""
    steps_taken: AtLeastOne
    """Noisy steps in the ledger."""
    delta_source: DeltaSource | None = None
    """given, by privacy.delta; or the rule of task.default_delta: own_data, 1/(10n) rounded down,
    or published, the papers' 1/(2n)."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    unit_definition: str
    """What the unit is, in words that follow: the unit is."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    noise_source: str
    """What made the noise, in words."""
    ledger: LedgerHead
    """The ledger as it was when this was written."""
    histogram_sha256: Digest
    """SHA-256 of histogram.tsv."""
    words_kept: Count
    """Words that reached the threshold."""


@dataclass(frozen=True, kw_only=True)
class OpenVocabulary(VocabularyRun, OpenPieces):
    """A vocabulary without privacy, of all words."""

    mechanism: Literal["none"] = "none"
    """No noise was drawn."""
    private: Literal[False] = False
    """No privacy."""
    steps: Literal[0] = 0
    """No release."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    num_examples_source: str
    """Who says how many examples there are."""


@dataclass(frozen=True, kw_only=True)
class VocabularyAnswer(Versioned):
    """What both answers say."""

    run: str
    """The run's folder."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class PrivateVocabularyAnswer(VocabularyAnswer, MadePieces):
    """A private vocabulary."""

    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    epsilon: NotNegative
    """Epsilon, exact and unrounded."""
    epsilon_classical: NotNegative
    """Epsilon by the paper's formula, which is no bound above 1."""
    delta: Delta
    """The delta at which epsilon holds."""
    noise_std: Positive
    """Standard deviation of the noise on each count."""
    threshold: NotNegative
    """A word is kept whose noisy count reaches it."""
    words_kept: Count
    """Words that reached the threshold."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""


@dataclass(frozen=True, kw_only=True)
class OpenVocabularyAnswer(VocabularyAnswer, OpenPieces):
    """A vocabulary without privacy."""

    private: Literal[False] = False
    """No privacy."""


RunPrivacy = PrivateRun | OpenRun
"""What a run that trained a model promises."""
Statement = GeneratedPrivately | GeneratedOpenly
"""What stands beside synthetic records."""
Vocabulary = PrivateVocabulary | OpenVocabulary
"""What a run of ``dpft tokenizer`` promises."""


def read_privacy(path: Path) -> RunPrivacy:
    """Returns the privacy.json of a run that trained a model.

    Raises:
        FileNotFoundError: It is not there.
        InputError: It is of another schema version, or of a tokenizer's run.
        StateError: It is damaged.
    """
    content = read_json(path)
    if "mechanism" in content and "total_parameters" not in content:
        raise InputError(
            f"{path.parent} is of dpft tokenizer, which trains no model; its own report says all of"
            " it."
        )
    kind: Any = PrivateRun if "epsilon" in content or "delta" in content else OpenRun
    try:
        found: RunPrivacy = parse(content, kind)
        return found
    except Misfit as misfit:
        raise StateError(f"{path} is damaged: {misfit}; put it back as it was.") from None


def read_statement(path: Path) -> Statement:
    """Returns what stands beside synthetic records.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    kind: Any = Statement
    found: Statement = read_record(path, kind)
    return found


def ledger_of(record: RunPrivacy | Statement) -> LedgerHead | None:
    """Returns the ledger that a private run's record names; None where there is no noise."""
    return record.ledger if isinstance(record, PrivateRun | GeneratedPrivately) else None


def is_promised(privacy: RunPrivacy) -> TypeGuard[PrivateRun]:
    """Returns whether there is an epsilon to rely on: not without privacy, nor of a test's seed."""
    return isinstance(privacy, PrivateRun) and privacy.private


def guarantee(privacy: PrivateRun | StartingModel) -> tuple[float, float]:
    """Returns the epsilon and delta of all that a model's release tells.

    Where the records made its tokenizer, too, they are those of both: epsilon of the training alone
    is no guarantee of the model.
    """
    both, delta = privacy.epsilon_with_tokenizer, privacy.delta_with_tokenizer
    if both is None or delta is None:
        return float(privacy.epsilon), float(privacy.delta)
    return float(both), float(delta)
