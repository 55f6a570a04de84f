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
