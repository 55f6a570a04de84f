"""The results of audits that a run's report shows."""

from typing import Annotated, Literal

from pydantic import Field

from dpft.strict_model import (
    AtLeastOne,
    Count,
    Delta,
    NotNegative,
    Probability,
    StrictModel,
    Versioned,
)


class Spread(StrictModel):
    """Mean and standard deviation over canaries, in bits."""

    mean: float
    """Mean."""
    standard_deviation: NotNegative
    """Standard deviation; 0 of one canary."""


class ExposureGroup(StrictModel):
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


class ExposureTable(StrictModel):
    """Of audit=exposure."""

    repetitions: tuple[ExposureGroup, ...]
    """Canaries by number of repetitions."""
    rows: tuple[tuple[str, str], ...]
    """The rows of the report's table, name and value."""
    largest_exposure: NotNegative
    """The most bits that a rank can show."""


class ViewInShort(StrictModel):
    """A view in short."""

    view: str
    """What the attacker sees: black box or white box."""
    epsilon_lower: NotNegative
    """Lower bound of epsilon that the guesses prove at that confidence."""
    other_mechanism: bool
    """Whether the guesses are impossible under the planned noise and sampling."""
    assumes_no_mixing: bool
    """Whether that verdict takes it that one canary's scores tell nothing of another's coin."""


class Guesses(ViewInShort):
    """What one kind of attacker found."""

    threat_model: str
    """What the attacker has and knows, in a sentence."""
    epsilon: NotNegative | None = None
    """The epsilon that the report states; absent without privacy."""
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
    p_value_of_plan: Probability | None = None
    """Probability of such guesses under the plan, at most; absent where nothing was planned."""
    mechanism_confidence: Delta
    """Of the verdict on the mechanism."""


class GuessesInShort(Guesses):
    """Of audit=one_run: the strongest view, and all in short."""

    views: tuple[ViewInShort, ...]
    """Each view in short."""

    def _check_fields(self) -> None:
        """Reject what contradicts itself, which no audit has found."""
        if not self.correct <= self.guesses <= self.canaries:
            raise ValueError("correct must be at most guesses, and these at most canaries")
        if not self.views or self.epsilon_lower != max(view.epsilon_lower for view in self.views):
            raise ValueError("epsilon_lower must be the largest of its views'")
        if self.other_mechanism != any(view.other_mechanism for view in self.views):
            raise ValueError("other_mechanism must be what one of its views says")


class OneRunAudit(Guesses, Versioned):
    """What guessing canaries' coins shows (Steinke et al. 2023): the strongest, and all views."""

    audit: Literal["one_run"] = "one_run"
    """Which audit."""
    note: str | None = None
    """That it is the owner's alone; in the kept file only."""
    views: Annotated[tuple[Guesses, ...], Field(min_length=1)]
    """Every view."""
