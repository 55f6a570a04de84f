"""What a run of ``dpft tokenizer`` promises, and what the command prints of it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dpft.records.bounds import DeltaSource, Relation
from dpft.records.form import Limits
from dpft.records.ledger import HistogramNumbers, LedgerHead
from dpft.records.promises import Begun, SeedMarked
from dpft.records.values import (
    AtLeastOne,
    Count,
    Delta,
    Digest,
    NotNegative,
    Positive,
    Versioned,
)


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
