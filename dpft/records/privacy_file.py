"""privacy.json of any run, read in one place, and what of it can be relied on.

Four kinds of runs write one: training with privacy and without (``dpft.records.promises``), and
vocabularies made with privacy and without, which stand here with what ``dpft tokenizer`` prints.
Reports and cards are printed from what is read here. The file is an output: nothing signs it, and
no command decides by it what was spent; the ledger says that.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from dpft.errors import InputError, StateError
from dpft.files import read_json
from dpft.records.costs import DeltaSource, Relation
from dpft.records.form import (
    AtLeastOne,
    Count,
    Delta,
    Digest,
    Limits,
    Misfit,
    NotNegative,
    Positive,
    Versioned,
    parse,
    read_record,
)
from dpft.records.ledger import HistogramNumbers, LedgerHead
from dpft.records.promises import (
    Begun,
    GeneratedOpenly,
    GeneratedPrivately,
    OpenRun,
    PrivateRun,
    SeedMarked,
    StartingModel,
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


RunPrivacy = PrivateRun | OpenRun
"""What a run that trained a model promises."""
Statement = GeneratedPrivately | GeneratedOpenly
"""What stands beside synthetic records."""
Vocabulary = PrivateVocabulary | OpenVocabulary
"""What a run of ``dpft tokenizer`` promises."""
LINEAR_NOISE = "float32 pseudo-random"
"""How the noise source of earlier versions begins, without their ``privacy.secure_noise``."""
COMPUTABLE = (
    "this run's noise came from a linear generator, whose state can be computed from the released"
    " weights: its guarantee does not hold; treat the model as trained without it (SECURITY.md)"
)


def read_privacy(path: Path) -> RunPrivacy | Vocabulary:
    """Returns what a privacy.json says; a run of an earlier version's noise gets a warning.

    Raises:
        FileNotFoundError: It is not there.
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    content = read_json(path)
    kind: Any = OpenRun
    if "mechanism" in content and "total_parameters" not in content:
        kind = PrivateVocabulary if "epsilon" in content else OpenVocabulary
    elif "epsilon" in content or "delta" in content:
        kind = PrivateRun
    try:
        found: RunPrivacy | Vocabulary = parse(content, kind)
    except Misfit as misfit:
        raise StateError(f"{path} is damaged: {misfit}; put it back as it was.") from None
    if has_noise(found) and found.noise_source.startswith(LINEAR_NOISE):
        return replace(found, warnings=(COMPUTABLE, *found.warnings))
    return found


def run_privacy(path: Path) -> RunPrivacy:
    """Returns the privacy.json of a run that trained a model.

    Raises:
        FileNotFoundError: It is not there.
        InputError: It is of another schema version, or of a tokenizer's run.
        StateError: It is damaged.
    """
    found = read_privacy(path)
    if isinstance(found, PrivateVocabulary | OpenVocabulary):
        raise InputError(
            f"{path.parent} is of dpft tokenizer, which trains no model; its own report says all of"
            " it."
        )
    return found


def read_statement(path: Path) -> Statement:
    """Returns what stands beside synthetic records.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    kind: Any = Statement
    found: Statement = read_record(path, kind)
    return found


def spent_on(record: RunPrivacy | Statement) -> tuple[float, LedgerHead] | None:
    """Returns what tells a private run from any other: its epsilon, of which ledger; else None."""
    if isinstance(record, PrivateRun | GeneratedPrivately):
        return record.epsilon, record.ledger
    return None


def read_vocabulary(path: Path) -> Vocabulary:
    """Returns the privacy.json of a tokenizer's run.

    Raises:
        InputError: It is of another schema version, or of a run that trained a model.
        StateError: It is damaged.
    """
    found = read_privacy(path)
    if isinstance(found, PrivateRun | OpenRun):
        raise StateError(f"{path} must be of a run of dpft tokenizer; put it back as it was.")
    return found


def has_noise(privacy: RunPrivacy | Vocabulary) -> TypeGuard[PrivateRun | PrivateVocabulary]:
    """Returns whether noise was added, so that there is an epsilon."""
    return isinstance(privacy, PrivateRun | PrivateVocabulary)


def is_promised(
    privacy: RunPrivacy | Vocabulary,
) -> TypeGuard[PrivateRun | PrivateVocabulary]:
    """Returns whether there is an epsilon, read by ``read_privacy``, that is one to rely on.

    Not without privacy, nor of a test's seed, nor where the noise can be computed.
    """
    return has_noise(privacy) and privacy.private and COMPUTABLE not in privacy.warnings


def guarantee(privacy: PrivateRun | PrivateVocabulary | StartingModel) -> tuple[float, float]:
    """Returns the epsilon and delta of all that a model's release tells.

    Where the records made its tokenizer, too, they are those of both: epsilon of the training alone
    is no guarantee of the model.
    """
    if isinstance(privacy, PrivateVocabulary):
        return float(privacy.epsilon), float(privacy.delta)
    both, delta = privacy.epsilon_with_tokenizer, privacy.delta_with_tokenizer
    if both is None or delta is None:
        return float(privacy.epsilon), float(privacy.delta)
    return float(both), float(delta)
