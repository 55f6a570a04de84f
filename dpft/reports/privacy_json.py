"""Fields of privacy.json, and of the statement next to generated records.

The file contains the values at the time when it was written. Commands that print epsilon compute it
from the ledger (``dpft.commands.guarantee``).
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
    """Cost of the model's private tokenizer by itself."""

    epsilon: NotNegative
    """Epsilon of the tokenizer by itself."""
    delta: Delta
    """Delta of the tokenizer by itself."""
    ledger: LedgerHead
    """The ledger of the tokenizer's run."""
    simple_composition: NotNegative
    """The sum of both epsilons, never below the epsilon of both together."""


class WithTokenizer(StrictModel):
    """Cost of a training and its private tokenizer together."""

    epsilon: NotNegative
    """Epsilon of the training and the model's tokenizer together."""
    delta: Delta
    """Delta of both together, which is the sum of both deltas."""
    tokenizer: TokenizerCost
    """Cost of the model's private tokenizer by itself."""


class PlanPromise(EpsilonBound):
    """Guarantee of a plan: the fields that privacy.json and ``dpft plan`` share."""

    private: bool
    """Whether epsilon protects the records: false without noise, and if a test seed made the noise
    predictable."""
    plan: PrivacyPlan
    """Plan of the run, as in the first line of its ledger."""
    rounding_headroom: NotNegative
    """Share of the clipping norm that is kept for rounding."""
    participations: AtLeastOne | None = None
    """Maximum number of steps that one unit can join, which determines the cost. Absent if a unit
    can join all steps."""
    with_tokenizer: WithTokenizer | None = None
    """Cost together with the tokenizer that was made from the same records. Absent if the texts of
    the tokenizer are public."""


class NoPromise(StrictModel):
    """Fields of privacy.json and ``dpft plan`` with ``privacy=none``, without epsilon."""

    private: Literal[False] = False
    """Always false."""
    plan: ClippingPlan | StepsPlan
    """Steps of the run, and its clipping if gradients are clipped."""
    rounding_headroom: NotNegative | None = None
    """Share of the clipping norm that is kept for rounding; absent if nothing is clipped."""
    warnings: tuple[str, ...] = ()
    """Warnings for the reader, one sentence each."""


class Selection(StrictModel):
    """Choice of the released model within one epsilon."""

    theorem: str
    """Theorem that bounds the cost of the choice."""
    eta: Annotated[float, Field(gt=-1)]
    """Shape of the random number of trials."""
    gamma: Delta
    """Scale of the random number of trials."""
    expected_trials: Annotated[float, Field(ge=1)]
    """Expected number of trials."""
    search_space: Mapping[str, tuple[Any, ...]]
    """Values that a trial could draw, by key."""


class Audited(StrictModel):
    """Results of `dpft audit` that depend only on canaries and may be released."""

    one_run: GuessesInShort | None = None
    """Result of audit=one_run: the strongest view, and a summary of all views."""
    exposure: ExposureTable | None = None
    """Result of audit=exposure."""


class Versions(StrictModel):
    """Versions of the packages with which the run started."""

    dpft: str
    """Version of dpft."""
    torch: str | None = None
    """Version of torch."""
    transformers: str | None = None
    """Version of transformers."""


class Begun(StrictModel):
    """Date and versions with which a run started."""

    date: Day | None = None
    """UTC day on which the run started."""
    versions: Versions | None = None
    """Versions of the packages with which the run started."""
    commit: str | None = None
    """Commit of the git checkout, with the suffix -dirty if files differ."""

    @property
    def when(self) -> dict[str, Any]:
        """The fields of this class, for use in a record that has further fields."""
        return {"date": self.date, "versions": self.versions, "commit": self.commit}


class StartingModel(Promise):
    """Guarantee of an earlier private training of the model for its own records."""

    with_tokenizer: WithTokenizer | None = None
    """Guarantee of the training together with its tokenizer."""
    data: str
    """Task and source of the records of that training."""
    model: str
    """The model that was trained."""
    neighboring_relation: Relation
    """How neighboring data sets of that training differ."""
    num_examples: AtLeastOne
    """Number of examples or units of that training, which counts as public."""
    private: bool
    """Whether that training was private."""
    unit: str
    """Privacy unit of that training."""
    unit_definition: str
    """Definition of this privacy unit."""
    ledger: Digest
    """Head of the ledger of that training."""


class BegunFile(Begun, Versioned):
    """Content of private/begun.json: date, versions and command with which a run started."""

    starting_models: tuple[StartingModel, ...] | None = None
    """Earlier private trainings of the model, the last one first."""
    asked: str | None = None
    """Fingerprint of the requested configuration."""


class Origin(Begun):
    """Origin of a run, and later results about it."""

    audited: Audited | None = None
    """Results of `dpft audit` that depend only on canaries and may be released."""
    processes: Annotated[tuple[Process, ...], Field(min_length=1)] | None = None
    """Groups of processes that took steps; absent if a single process took all steps."""
    model: str
    """Name of the model on the Hub, or of its folder."""
    data: str
    """Task and source of the records."""
    starting_models: tuple[StartingModel, ...] | None = None
    """Earlier private trainings of the model, the last one first."""


class TrainedRun(Origin, Versioned):
    """Fields of both kinds of runs that trained a model."""

    parameters: ParameterCounts
    """Numbers of all and of trainable parameters of the model."""


class PrivateRun(PlanPromise, TrainedRun):
    """A run of `dpft train` with privacy=dp, or the published run of `dpft tune`."""

    steps_taken: Count
    """Number of noisy steps in the ledger, all of which are accounted for. More than planned if a
    resumed run repeated steps with new noise."""
    noise_source: str
    """Source of the noise, in words."""
    dropout_source: str
    """Source of the dropout masks, in words."""
    num_examples_source: str
    """Source of the number of examples."""
    ledger: LedgerHead
    """The ledger as it was when this was written."""
    epsilon_curve: EpsilonCurve | None = None
    """Upper bounds of epsilon over the steps of the plan; between two points, the bound of the next
    point holds. Absent for a search, and for a synthesis with a histogram."""
    selection: Selection | None = None
    """Choice of the released model within one epsilon."""


class OpenRun(NoPromise, TrainedRun):
    """A run with privacy=none, with or without clipping; there is no epsilon."""


RunPrivacy = PrivateRun | OpenRun
"""Guarantee of a run that trained a model."""


class GeneratedPrivacy(Versioned):
    """Statement next to synthetic records."""

    private: bool
    """Whether the guarantee of the run holds for these records."""
    guarantee: RunPrivacy | None = None
    """Guarantee of the run; absent if the prompts are records of the run."""
    run: str
    """Name of the run's folder, without its path."""
    task: str
    """Task whose format the records have."""
    decode: DecodeConfig
    """Settings of the generation."""
    retries: Count
    """Maximum number of times that a text was generated again because it was not a row."""
    records: Count
    """Number of requested records."""
    unparsed: Count | None = None
    """Number of requested records whose text is not a row."""
    prompts: Prompts
    """Origin of the prompts: the user, the records of the run, or none."""
    notes: tuple[str, ...]
    """Cost of the records, and the parts that epsilon does not cover, one sentence each."""


class TokenizerSummary(StrictModel):
    """Sizes and hash of a vocabulary."""

    vocab_size: AtLeastOne
    """Number of pieces of the vocabulary."""
    tokens: AtLeastOne
    """Number of pieces, special tokens and sentinels."""
    tokenizer_sha256: Digest
    """SHA-256 of tokenizer/tokenizer.json."""


class VocabularyRun(Begun, Versioned):
    """Fields of both kinds of runs of ``dpft tokenizer``."""

    warnings: tuple[str, ...] = ()
    """Warnings for the reader of epsilon, one sentence each."""
    algorithm: Literal["unigram", "bpe", "char"]
    """Algorithm that made the pieces."""
    data: str
    """Task and source of the records."""


class PrivateVocabulary(VocabularyRun):
    """A vocabulary of the words with noisy counts above a threshold."""

    private: bool
    """Whether epsilon protects the records: false without noise, and if a test seed made the noise
    predictable."""
    epsilon: NotNegative
    """Epsilon of the noise and the threshold together, exact and unrounded."""
    epsilon_classical: NotNegative
    """Epsilon by the formula of the paper, which is not a bound above 1."""
    plan: HistogramPlan
    """Plan of the run, as in the first line of its ledger."""
    steps_taken: AtLeastOne
    """Number of noisy steps in the ledger."""
    noise_source: str
    """Source of the noise, in words."""
    ledger: LedgerHead
    """The ledger as it was when this was written."""
    histogram_sha256: Digest
    """SHA-256 of histogram.tsv."""
    words_kept: Count
    """Number of words that reached the threshold."""
    pieces: TokenizerSummary | None = None
    """Vocabulary of these words; absent until it has been made."""


class OpenVocabulary(VocabularyRun):
    """A vocabulary without privacy, of all words."""

    private: Literal[False] = False
    """Always false."""
    num_examples: AtLeastOne
    """Number of examples or units, which counts as public."""
    num_examples_source: str
    """Source of the number of examples."""
    pieces: TokenizerSummary
    """Vocabulary of the words."""


Vocabulary = PrivateVocabulary | OpenVocabulary
"""Guarantee of a run of ``dpft tokenizer``."""


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
    """Return the statement next to synthetic records.

    Raises:
        InputError: The file has another schema version.
        StateError: The file is damaged.
    """
    return read_model(path, GeneratedPrivacy)


def is_promised(privacy: RunPrivacy) -> TypeGuard[PrivateRun]:
    """Return whether the guarantee holds: false without privacy, or with noise from a test seed."""
    return isinstance(privacy, PrivateRun) and privacy.private


def guarantee(privacy: PrivateRun | StartingModel) -> tuple[float, float]:
    """Return the epsilon and delta of the release of a model.

    If the tokenizer was made from the same records, the values cover both the training and the
    tokenizer. The epsilon of the training by itself would not be a guarantee for the model.
    """
    whole = privacy.with_tokenizer or privacy
    return whole.epsilon, whole.delta
