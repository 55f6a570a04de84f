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
    """Standard deviation; 0 for a single canary."""


class ExposureGroup(StrictModel):
    """Results for the canaries with one number of repetitions."""

    copies: Count
    """Number of copies of each canary among the records."""
    canaries: AtLeastOne
    """Number of canaries."""
    exact: Spread
    """Exposure by rank among all suffixes."""
    fitted: Spread
    """Exposure by a fitted distribution of scores."""
    exact_before: Spread
    """Exposure by rank in the model before fine-tuning."""
    goodness_of_fit: Probability
    """Kolmogorov-Smirnov statistic of the worst fit; 0 is perfect."""


class ExposureTable(StrictModel):
    """Result of audit=exposure."""

    repetitions: tuple[ExposureGroup, ...]
    """Results by number of repetitions."""
    rows: tuple[tuple[str, str], ...]
    """Rows of the report's table, name and value."""
    largest_exposure: NotNegative
    """Largest exposure that a rank can show, in bits."""


class ViewInShort(StrictModel):
    """Summary of the result with one view."""

    view: str
    """View of the attacker: black box or white box."""
    epsilon_lower: NotNegative
    """Lower bound of epsilon that the guesses prove at the confidence of the audit."""
    other_mechanism: bool
    """Whether the guesses are impossible under the planned noise and sampling."""
    assumes_no_mixing: bool
    """Whether this verdict assumes that scores of one canary reveal nothing about other coins."""


class Guesses(ViewInShort):
    """Result of one kind of attacker."""

    threat_model: str
    """Knowledge of the attacker, in one sentence."""
    epsilon: NotNegative | None = None
    """Epsilon that the report states; absent without privacy."""
    delta: NotNegative
    """Delta of the bounds."""
    canaries: AtLeastOne
    """Number of canaries, each included by a fair coin."""
    guesses: Count
    """Number of guesses."""
    correct: Count
    """Number of correct guesses."""
    confidence: Delta
    """Simultaneous confidence of all lower bounds."""
    choices: AtLeastOne
    """Number of guess counts that were tried."""
    largest_epsilon_lower: NotNegative
    """Largest lower bound that this number of canaries can prove."""
    epsilon_lower_if_gaussian: NotNegative
    """Lower bound of epsilon for a Gaussian mechanism."""
    p_value_of_plan: Probability | None = None
    """Largest probability of such guesses under the plan; absent without a plan."""
    mechanism_confidence: Delta
    """Confidence of the verdict on the mechanism."""


class GuessesInShort(Guesses):
    """Result of audit=one_run: the strongest view, and a summary of all views."""

    views: tuple[ViewInShort, ...]
    """Summary of each view."""

    def _check_fields(self) -> None:
        """Reject contradictory values, which no audit writes."""
        if not self.correct <= self.guesses <= self.canaries:
            raise ValueError("correct must be at most guesses, and guesses at most canaries")
        if not self.views or self.epsilon_lower != max(view.epsilon_lower for view in self.views):
            raise ValueError("epsilon_lower must be the largest epsilon_lower of the views")
        if self.other_mechanism != any(view.other_mechanism for view in self.views):
            raise ValueError("other_mechanism must be true exactly if it is true for a view")


class OneRunAudit(Guesses, Versioned):
    """Result of guessing the coins of canaries (Steinke et al. 2023), for each view."""

    audit: Literal["one_run"] = "one_run"
    """Name of the audit."""
    note: str | None = None
    """Statement that the file is only for the owner; absent from printed results."""
    views: Annotated[tuple[Guesses, ...], Field(min_length=1)]
    """Results of all views."""
