"""Results of audits, as ``dpft audit output=json`` prints them and private/audit/ keeps them.

Of what follows from canaries alone, privacy.json has a part: ``GuessesInShort``, ``ExposureTable``.
The canaries themselves are kept in private/audit/ (``KeptCanaries``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from dpft.records.form import (
    AtLeastOne,
    Count,
    Delta,
    Limits,
    NotNegative,
    Probability,
    Versioned,
    named,
)

Percent = Annotated[float, Limits(minimum=0, maximum=100)]
SETS = ("train_dup", "train_unique", "valid_in_train", "valid_unique")
RecordSet = Annotated[str, Limits(choices=SETS)]
"""Records with and without near duplicates, trained on and not."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and standard deviation over canaries, in bits."""

    mean: float
    """Mean."""
    standard_deviation: NotNegative
    """Standard deviation; 0 of one canary."""


@dataclass(frozen=True, kw_only=True)
class ExposureGroup:
    """Canaries of one number of repetitions."""

    copies: Count
    """How often each was among the records."""
    canaries: AtLeastOne
    """How many canaries."""
    exact: Spread
    """Exposure by rank among all suffixes."""
    fitted: Spread
    """Exposure by a fitted distribution."""
    exact_before: Spread
    """Exposure by rank in the model before fine-tuning."""
    goodness_of_fit: Probability
    """Statistic of Kolmogorov and Smirnov of the worst fit; 0 is perfect."""


@dataclass(frozen=True, kw_only=True)
class ExposureTable:
    """Of audit=exposure."""

    repetitions: tuple[ExposureGroup, ...]
    """Canaries by number of repetitions."""
    rows: tuple[tuple[str, str], ...]
    """The rows of the report's table, name and value."""
    largest_exposure: NotNegative
    """The most bits that a rank can show."""


@dataclass(frozen=True, kw_only=True)
class ExposureAudit(ExposureTable, Versioned):
    """What can be read out of repeated canaries (Carlini et al. 2019), in bits."""

    audit: Literal["exposure"] = "exposure"
    """Which audit."""
    note: str | None = None
    """That it is the owner's alone; in the kept file only."""
    goodness_of_fit: Probability
    """Of the worst fit."""


@dataclass(frozen=True, kw_only=True)
class ViewInShort:
    """A view in short."""

    view: str
    """What the attacker sees: black box or white box."""
    epsilon_lower: NotNegative
    """Lower bound of epsilon that the guesses prove at that confidence."""
    other_mechanism: bool
    """Whether the guesses are impossible under the planned noise and sampling."""
    assumes_no_mixing: bool
    """Whether that verdict takes it that one canary's scores tell nothing of another's coin."""


@dataclass(frozen=True, kw_only=True)
class Guesses(ViewInShort):
    """What one kind of attacker found."""

    threat_model: str
    """What the attacker has and knows, in a sentence."""
    epsilon: NotNegative | None
    """The epsilon that the report states; null without privacy."""
    delta: NotNegative
    """At which the bounds are."""
    canaries: AtLeastOne
    """Canaries, each included by a fair coin."""
    guesses: Count
    """Canaries about which was guessed."""
    correct: Count
    """Right guesses."""
    confidence: Delta
    """Of all lower bounds at once."""
    choices: AtLeastOne
    """Numbers of guesses that were tried."""
    largest_epsilon_lower: NotNegative
    """The most that so many canaries could have shown."""
    epsilon_lower_if_gaussian: NotNegative
    """Lower bound that holds for a Gaussian mechanism."""
    p_value_of_plan: Probability | None
    """Probability of such guesses under the plan, at most; null where nothing was planned."""
    mechanism_confidence: Delta
    """Of the verdict on the mechanism."""


@dataclass(frozen=True, kw_only=True)
class GuessesInShort(Guesses):
    """Of audit=one_run: the strongest view, and all in short."""

    views: tuple[ViewInShort, ...]
    """Each view in short."""

    def __post_init__(self) -> None:
        """Refuses what contradicts itself, which no audit has found."""
        if not self.correct <= self.guesses <= self.canaries:
            raise ValueError("correct must be at most guesses, and these at most canaries")
        if not self.views or self.epsilon_lower != max(view.epsilon_lower for view in self.views):
            raise ValueError("epsilon_lower must be the largest of its views'")
        if self.other_mechanism != any(view.other_mechanism for view in self.views):
            raise ValueError("other_mechanism must be what one of its views says")


@dataclass(frozen=True, kw_only=True)
class OneRunAudit(Guesses, Versioned):
    """What guessing canaries' coins shows (Steinke et al. 2023): the strongest, and all views."""

    audit: Literal["one_run"] = "one_run"
    """Which audit."""
    note: str | None = None
    """That it is the owner's alone; in the kept file only."""
    views: Annotated[tuple[Guesses, ...], Limits(min_items=1)]
    """Every view."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of records with its interval of Clopper and Pearson."""

    rate: Probability
    """Found."""
    lower: Probability
    """Lower end."""
    upper: Probability
    """Upper end."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """An attack at the lowest threshold within a limit."""

    limit: float
    """The largest false positive rate allowed."""
    false_positive_rate: Share
    """Records taken for training records that are none."""
    true_positive_rate: Share
    """Training records that were told."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoints:
    """At each limit of false positives."""

    one_percent: OperatingPoint = named("0.01")
    """One in a hundred."""
    one_in_thousand: OperatingPoint = named("0.001")
    """One in a thousand."""


@dataclass(frozen=True, kw_only=True)
class AllowedAttack:
    """Bounds."""

    auc: Probability
    """Of the area."""
    one_percent: Probability = named("0.01")
    """Of true positives at 0.01 false ones."""
    one_in_thousand: Probability = named("0.001")
    """Of true positives at 0.001 false ones."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack."""

    auc: Probability
    """Area under its curve."""
    tpr_at_fpr: OperatingPoints
    """At each limit of false positives."""
    allowed: AllowedAttack | None
    """The most that the mechanism allows; null where nothing bounds an attack."""


@dataclass(frozen=True, kw_only=True)
class MembershipAudit(Versioned):
    """How well attacks tell the run's training records from others."""

    audit: Literal["membership"] = "membership"
    """Which audit."""
    note: str | None = None
    """That it is the owner's alone; in the kept file only."""
    private: Literal[True] = True
    """Always: the result tells of the records, and stays with their owner."""
    members: AtLeastOne
    """Records that were trained on."""
    non_members: AtLeastOne
    """Records that were not."""
    non_members_of: str
    """Where these are from."""
    reference_runs: Count
    """Reference runs that the attacks had."""
    attacks: Mapping[str, Attack]
    """Each attack by its name."""


@dataclass(frozen=True, kw_only=True)
class MemorizationAudit(Versioned):
    """How much of its records a model writes on by itself.

    For records with and without near duplicates, trained on and not.
    """

    audit: Literal["memorization"] = "memorization"
    """Which audit."""
    note: str
    """A sentence that says that the result is for the owner of the data alone."""
    private: Literal[True] = True
    """Always: the result tells of the records, and stays with their owner."""
    near_duplicates: str
    """What counts as a near duplicate, in words."""
    hidden: Annotated[str, Limits(choices=("continuation", "spans"))] | None = None
    """What the model is to write: what follows a prefix, or hidden spans. Files of dpft 1.0 lack
    it."""
    prefix_tokens: AtLeastOne
    """Tokens that the model is given."""
    continuation_tokens: AtLeastOne
    """Most tokens that are asked of it."""
    limit: AtLeastOne
    """Most records of each set."""
    not_there: Mapping[RecordSet, str]
    """Why sets are not there, by set."""
    records: Mapping[RecordSet, NotNegative]
    """Records, by set."""
    rows: Mapping[RecordSet, NotNegative] | None = None
    """Rows, by set: the records, or their chunks. Files of dpft 1.0 lack it."""
    exact_match: Mapping[RecordSet, Percent]
    """Rows of which all that was asked was written, in percent."""
    token_accuracy: Mapping[RecordSet, Percent]
    """Tokens in their places, in percent."""
    median_edit_distance: Mapping[RecordSet, NotNegative]
    """Median edit distance in tokens."""
    median_edit_distance_words: Mapping[RecordSet, NotNegative]
    """Median edit distance in words."""
    mean_continuation_tokens: Mapping[RecordSet, NotNegative]
    """Mean number of tokens that are asked of a row."""


@dataclass(frozen=True, kw_only=True)
class TextShape:
    """Texts by themselves."""

    records: AtLeastOne
    """How many."""
    distinct_percent: float
    """Different texts among them, in percent."""
    near_duplicate_percent: float
    """Texts with a near duplicate among the others, in percent."""
    words_mean: float
    """Mean words of a text."""
    words_median: float
    """Median words."""
    words_5_percent: float
    """5 % quantile of words."""
    words_95_percent: float
    """95 % quantile of words."""
    distinct_1: Probability
    """Different 1-grams of words as a share of all."""
    distinct_2: Probability
    """Different 2-grams of words as a share of all."""
    distinct_3: Probability
    """Different 3-grams of words as a share of all."""


@dataclass(frozen=True, kw_only=True)
class NgramDivergence:
    """Jensen-Shannon divergence of n-grams."""

    of_1: Probability = named("1")
    """Of 1-grams, in bits."""
    of_2: Probability = named("2")
    """Of 2-grams, in bits."""
    of_3: Probability = named("3")
    """Of 3-grams, in bits."""


@dataclass(frozen=True, kw_only=True)
class TextQuality:
    """Against real texts."""

    reference: str
    """What the real ones are."""
    reference_is_public: bool
    """Whether those may be shown."""
    real: TextShape
    """The real texts by themselves."""
    not_compared: str | None = None
    """Why they are not compared."""
    records: Count | None = None
    """Texts of each kind that the classifier was asked about."""
    two_sample_accuracy: Probability | None = None
    """Share that a classifier told right; a coin tells half."""
    two_sample_p_value: Probability | None = None
    """Probability that a coin does as well."""
    ngram_divergence: NgramDivergence | None = None
    """Jensen-Shannon divergence of n-grams."""
    ngram_divergence_control: NgramDivergence | None = None
    """Jensen-Shannon divergence of n-grams between two halves of the real texts."""


@dataclass(frozen=True, kw_only=True)
class NoUtility:
    """None."""

    not_computed: str
    """Why."""


@dataclass(frozen=True, kw_only=True)
class ClassifierScores:
    """Scores."""

    accuracy: Probability
    """Share told right."""
    macro_f1: Probability
    """Mean F1 over classes."""


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Classifiers on real records."""

    label: str
    """The column of the class."""
    tested: AtLeastOne
    """Real records they were tested on."""
    synthetic: ClassifierScores | str
    """Taught by synthetic records."""
    commonest: ClassifierScores | str
    """Always the commonest class."""
    training: ClassifierScores | str
    """Taught by training records, and so private."""


@dataclass(frozen=True, kw_only=True)
class TextsFound:
    """What synthetic text holds of some records."""

    records: AtLeastOne
    """How many records."""
    exact_percent: float
    """Records that are a synthetic text, in percent."""
    near_duplicate_percent: float
    """Records with a near duplicate among them, in percent."""
    longest_run_median: float
    """Median over records of the longest run of words found."""
    longest_run_95_percent: float
    """95 % quantile of the same."""
    longest_run_most: Count
    """The longest run."""


@dataclass(frozen=True, kw_only=True)
class LongRuns:
    """Long runs."""

    words: Count
    """Words in a row that few others have."""
    training_share: Probability
    """Of training records."""
    unseen_share: Probability
    """Of others."""


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """Of training records, beside others."""

    training: TextsFound
    """Of training records."""
    unseen: TextsFound | None
    """Of other records; null where there are none."""
    copies: Count
    """Synthetic texts that are a training record."""
    longest_run_auc: Probability | None
    """Probability that of a training record a longer run was found than of another."""
    longest_run_p_value: Probability | None
    """P-value of longest_run_auc being one half."""
    tail: LongRuns | None
    """Long runs of words; null without other records."""


@dataclass(frozen=True, kw_only=True)
class CanariesInTexts:
    """Canaries of a kind."""

    canaries: AtLeastOne
    """How many."""
    found: Count
    """Those of which a text stands in one of them."""
    longest_run: Count
    """Most words of one in a row."""


@dataclass(frozen=True, kw_only=True)
class SyntheticAudit(Versioned):
    """What synthetic records are worth, and what they hold of single records."""

    audit: Literal["synthetic"] = "synthetic"
    """Which audit."""
    note: str
    """A sentence that says that the result is for the owner of the data alone."""
    private: Literal[True] = True
    """Always: the result compares with the records, and stays with their owner."""
    synthetic: str
    """Name of the file that was looked at."""
    limit: AtLeastOne
    """Most records of each kind."""
    no_rows: Count | None = None
    """Rows that were left out, since their label is none of task.labels."""
    near_duplicates: str
    """What counts as a near duplicate, in words."""
    alone: TextShape
    """The synthetic texts by themselves."""
    quality: TextQuality | None
    """Synthetic texts against real ones; null where no real records are there."""
    utility: NoUtility | Utility
    """What a classifier learns of them, or why none is taught."""
    leakage: Leakage | None
    """What they hold of training records; null where those are not there."""
    canaries: Mapping[Annotated[str, Limits(choices=("included", "not_included"))], CanariesInTexts]
    """The run's canaries in the texts, included ones and others; empty without any."""
    not_there: Mapping[str, str]
    """Why some records are not compared, by what they are."""
    not_computed: Mapping[str, str]
    """Why something is not computed, by its name."""
    epsilon: NotNegative | None
    """The run's; null without privacy."""
    delta: NotNegative | None
    """The run's; null without privacy."""
    not_released: str | None
    """Why nothing may be released; null where audit/synthetic.html was."""


AuditRecord = ExposureAudit | OneRunAudit | MembershipAudit | MemorizationAudit | SyntheticAudit
"""What an audit finds, all of it."""


@dataclass(frozen=True, kw_only=True)
class KeptCanary:
    """One canary; private, as whether it was trained on is."""

    kind: str
    """With a coin, or of exposure."""
    read: tuple[str, ...]
    """Words that the model reads."""
    learned: tuple[str, ...]
    """Words that it learns, or might have."""
    number: int
    """Chooses its label, where there is one."""
    copies: Count
    """Times that it is among the training records."""
    unit: str
    """The privacy unit of all its copies, which no record of a user has."""
    included: bool
    """Whether it was trained on."""
    texts: tuple[str, ...]
    """What a reader can search for."""


@dataclass(frozen=True, kw_only=True)
class KeptCanaries(Versioned):
    """All canaries of a run."""

    canaries: tuple[KeptCanary, ...]
    """Included ones and others."""
