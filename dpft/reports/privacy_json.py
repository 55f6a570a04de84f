"""The fields of privacy.json, and of the statement next to generated records.

The file records what was printed when it was written. Commands that print epsilon compute it from
the ledger (``dpft.commands.guarantee``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import Field, ValidationError

from dpft.errors import InputError, StateError
from dpft.generation.decoding import DecodeConfig
from dpft.methods.base import ParameterCounts
from dpft.parallel.parallel_config import Process
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.summary import EpsilonBound, Promise
from dpft.privacy.ledger import LedgerHead
from dpft.privacy.plan import ClippingPlan, HistogramPlan, PrivacyPlan, Relation, StepsPlan
from dpft.reports.audit_findings import ExposureTable, GuessesInShort
from dpft.run_folder import read_json
from dpft.strict_model import (
    AtLeastOne,
    Count,
    Day,
    Delta,
    Digest,
    NotNegative,
    StrictModel,
    Versioned,
    in_short,
    parse,
    read_model,
)

OWN_RECORDS: Literal["the run's own records"] = "the run's own records"
Prompts = Literal["the user's", "the run's own records", "none"]


class TokenizerCost(StrictModel):
    """What the model's private tokenizer cost by itself."""

    epsilon: NotNegative
    """Of the tokenizer alone."""
    delta: Delta
    """At which it holds."""
    ledger: LedgerHead
    """The ledger of the tokenizer's run."""
    simple_composition: NotNegative
    """The sum of both epsilons, never below the epsilon of both together."""


class WithTokenizer(StrictModel):
    """What a training and its private tokenizer cost together."""

    epsilon: NotNegative
    """Epsilon of the training and the model's tokenizer together."""
    delta: Delta
    """The delta at which that holds, the sum of both."""
    tokenizer: TokenizerCost
    """What the model's private tokenizer cost by itself."""


class PlanPromise(EpsilonBound):
    """What a plan promises: what privacy.json and ``dpft plan`` share."""

    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    plan: PrivacyPlan
    """What the run is bound to, as in the first line of its ledger."""
    rounding_headroom: NotNegative
    """Share of the clipping norm that is kept for rounding."""
    participations: AtLeastOne | None = None
    """Most steps that a unit can be in, which are those that cost. Absent: all."""
    with_tokenizer: WithTokenizer | None = None
    """The cost together with the tokenizer that the same records made. Absent if its texts are
    public."""


class NoPromise(StrictModel):
    """What privacy.json and ``dpft plan`` say with ``privacy=none``; there is no epsilon."""

    private: Literal[False] = False
    """No privacy."""
    plan: ClippingPlan | StepsPlan
    """How often the run trains, and how it clips if it does."""
    rounding_headroom: NotNegative | None = None
    """Share of the clipping norm that is kept for rounding; absent if nothing is clipped."""
    warnings: tuple[str, ...] = ()
    """What a reader must know, a sentence each."""


class Selection(StrictModel):
    """How the released model was chosen within one epsilon."""

    theorem: str
    """What bounds the choice."""
    eta: Annotated[float, Field(gt=-1)]
    """Shape of the random number of trials."""
    gamma: Delta
    """Scale of the random number of trials."""
    expected_trials: Annotated[float, Field(ge=1)]
    """Trials in expectation."""
    search_space: Mapping[str, tuple[Any, ...]]
    """Key to the values that a trial could draw."""


class Audited(StrictModel):
    """What `dpft audit` found that follows from canaries alone and may be released, by audit."""

    one_run: GuessesInShort | None = None
    """Of audit=one_run: the strongest view, and all in short."""
    exposure: ExposureTable | None = None
    """Of audit=exposure."""


class Versions(StrictModel):
    """Versions with which the run was begun, by package."""

    dpft: str
    """Of dpft."""
    torch: str | None = None
    """Of torch."""
    transformers: str | None = None
    """Of transformers."""


class Begun(StrictModel):
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


class StartingModel(Promise):
    """What an earlier private training of the model promised its own records."""

    with_tokenizer: WithTokenizer | None = None
    """The same together with its tokenizer."""
    data: str
    """Task and source of its records."""
    model: str
    """The model that was trained."""
    neighboring_relation: Relation
    """How its neighboring data sets differ."""
    num_examples: AtLeastOne
    """Number of its examples, or units, taken as public."""
    private: bool
    """Whether it was private."""
    unit: str
    """Whose contribution it hides."""
    unit_definition: str
    """What its unit is."""
    ledger: Digest
    """Head of its ledger."""


class BegunFile(Begun, Versioned):
    """private/begun.json: when and with what a run was begun, and by which command."""

    starting_models: tuple[StartingModel, ...] | None = None
    """Private trainings that the model has behind it, the last one first."""
    asked: str | None = None
    """What tells the configuration that was asked for from any other."""


class Origin(Begun):
    """Where a run comes from, and what was found out about it later."""

    audited: Audited | None = None
    """What `dpft audit` found that follows from canaries alone and may be released, by audit."""
    processes: Annotated[tuple[Process, ...], Field(min_length=1)] | None = None
    """Groups of processes that took steps; absent where one process took all."""
    model: str
    """The model, as the hub or its folder calls it."""
    data: str
    """Task and source of the records."""
    starting_models: tuple[StartingModel, ...] | None = None
    """Private trainings that the model has behind it, the last one first."""


class TrainedRun(Origin, Versioned):
    """What both kinds of runs that trained a model say."""

    parameters: ParameterCounts
    """How many numbers the model has, and how many of them train."""


class PrivateRun(PlanPromise, TrainedRun):
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
    epsilon_curve: EpsilonCurve | None = None
    """Upper bounds of epsilon over the plan's steps; between two points the next one's holds. Not
    of a search, nor of a synthesis with a histogram."""
    selection: Selection | None = None
    """How the released model was chosen within one epsilon."""


class OpenRun(NoPromise, TrainedRun):
    """A run with privacy=none, clipped or not: there is no epsilon."""


RunPrivacy = PrivateRun | OpenRun
"""What a run that trained a model promises."""


class GeneratedPrivacy(Versioned):
    """What stands beside synthetic records."""

    private: bool
    """Whether what the run guarantees holds for these records."""
    guarantee: RunPrivacy | None = None
    """What the run guarantees; absent if the prompts are its own records."""
    run: str
    """Name of the run's folder, not where it lies."""
    task: str
    """The task whose format the records have."""
    decode: DecodeConfig
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


class TokenizerSummary(StrictModel):
    """A vocabulary."""

    vocab_size: AtLeastOne
    """Pieces of the vocabulary."""
    tokens: AtLeastOne
    """Pieces, special tokens and sentinels."""
    tokenizer_sha256: Digest
    """SHA-256 of tokenizer/tokenizer.json."""


class VocabularyRun(Begun, Versioned):
    """What both kinds of runs of ``dpft tokenizer`` say."""

    warnings: tuple[str, ...] = ()
    """What a reader of epsilon must know, a sentence each."""
    algorithm: Literal["unigram", "bpe", "char"]
    """How pieces were made."""
    data: str
    """Task and source of the records."""


class PrivateVocabulary(VocabularyRun):
    """A vocabulary of the words whose noisy counts reached a threshold."""

    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    epsilon: NotNegative
    """Epsilon of the noise and the threshold together, exact and unrounded."""
    epsilon_classical: NotNegative
    """Epsilon by the paper's formula, which is no bound above 1."""
    plan: HistogramPlan
    """What the run is bound to, as in the first line of its ledger."""
    steps_taken: AtLeastOne
    """Noisy steps in the ledger."""
    noise_source: str
    """What made the noise, in words."""
    ledger: LedgerHead
    """The ledger as it was when this was written."""
    histogram_sha256: Digest
    """SHA-256 of histogram.tsv."""
    words_kept: Count
    """Words that reached the threshold."""
    pieces: TokenizerSummary | None = None
    """What was made of them; absent while there is no vocabulary."""


class OpenVocabulary(VocabularyRun):
    """A vocabulary without privacy, of all words."""

    private: Literal[False] = False
    """No privacy."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    num_examples_source: str
    """Who says how many examples there are."""
    pieces: TokenizerSummary
    """What was made of the words."""


Vocabulary = PrivateVocabulary | OpenVocabulary
"""What a run of ``dpft tokenizer`` promises."""


def read_privacy(path: Path) -> RunPrivacy:
    """Return the content of the privacy.json of a run that trained a model.

    Raises:
        FileNotFoundError: The file does not exist.
        InputError: The file has another schema version, or belongs to a run of ``dpft tokenizer``.
        StateError: The file is damaged.
    """
    content = read_json(path)
    if "algorithm" in content:
        raise InputError(
            f"{path.parent} is a run of dpft tokenizer, which trains no model. Read the report in"
            " that folder instead.",
            key=str(path.parent),
        )
    kind: Any = PrivateRun if "epsilon" in content or "delta" in content else OpenRun
    try:
        privacy: RunPrivacy = parse(content, kind)
        return privacy
    except ValidationError as error:
        raise StateError(
            f"{path} is damaged: {in_short(error)}. Restore it from a backup."
        ) from None


def read_statement(path: Path) -> GeneratedPrivacy:
    """Return what stands beside synthetic records.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    return read_model(path, GeneratedPrivacy)


def is_promised(privacy: RunPrivacy) -> TypeGuard[PrivateRun]:
    """Return whether there is an epsilon to rely on: not without privacy, nor of a test's seed."""
    return isinstance(privacy, PrivateRun) and privacy.private


def guarantee(privacy: PrivateRun | StartingModel) -> tuple[float, float]:
    """Return the epsilon and delta of all that a model's release tells.

    Where the records made its tokenizer, too, they are those of both: epsilon of the training alone
    is no guarantee of the model.
    """
    whole = privacy.with_tokenizer or privacy
    return whole.epsilon, whole.delta
