"""Records of a synthesis: its public statement, and the measures for its owner alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dpft.records.audits import Leakage
from dpft.records.costs import DeltaSource, Relation
from dpft.records.form import (
    AtLeastOne,
    Count,
    Day,
    Delta,
    Digest,
    Limits,
    NotNegative,
    Part,
    Positive,
    Probability,
    Rule,
    Rules,
    Versioned,
)
from dpft.records.ledger import LedgerHead
from dpft.records.promises import SeedMarked


@dataclass(frozen=True, kw_only=True)
class SynthesisPart:
    """A part of a synthesis that read records under noise."""

    name: Annotated[str, Limits(choices=("histogram", "training"))]
    """Which part."""
    epsilon: NotNegative
    """Of the part alone, at the whole's delta."""
    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    steps: AtLeastOne
    """Noisy steps taken."""
    run_id: str
    """What names the part's ledger."""
    ledger: LedgerHead
    """The part's ledger as it was when this was written."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the synthetic rows, of whose private counterpart nothing is said."""

    name: str
    """Its name."""
    type: str
    """Its type, by the schema."""
    missing: Count
    """Synthetic rows without a value."""
    counts: Mapping[str, Count]
    """Of a category each value's synthetic rows; of numbers and dates those of ten equal stretches
    of the schema's range; of a text those by its number of words."""


@dataclass(frozen=True, kw_only=True)
class Synthesis(Versioned, SeedMarked):
    """The statement of a synthesis, which may be released with its rows."""

    RULES: ClassVar[Rules] = (
        Rule(when=Part(requires=("epsilon",)), then=Part(requires=("delta", "accountant"))),
    )
    date: Day
    """Day on which it was reported."""
    epsilon: NotNegative | None = None
    """Epsilon of all parts together; absent without privacy."""
    delta: Delta | None = None
    """The delta at which it holds."""
    delta_source: DeltaSource | None = None
    """given, by privacy.delta, or the rule that it follows."""
    accountant: str | None = None
    """Whose bound epsilon is."""
    eps: Positive | None = None
    """The epsilon that was asked for."""
    share: Positive | None = None
    """What of it the histogram was to spend alone. Absent without one."""
    unit: str
    """Whose contribution is hidden: example, or a column."""
    unit_definition: str
    """What the unit is, in words that follow: the unit is."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    noise_source: str
    """What made the noise, in words."""
    num_examples: AtLeastOne
    """Number of rows, or of units, taken as public."""
    num_examples_source: str
    """Who says how many there are."""
    parts: tuple[SynthesisPart, ...]
    """What read records under noise; nothing else did."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, a sentence each."""
    schema_sha256: Digest
    """SHA-256 of schema.yaml."""
    condition: tuple[str, ...]
    """Columns of the histogram."""
    model: str
    """The generator before training."""
    method: str
    """How it was fine-tuned."""
    rows: Count
    """Synthetic rows."""
    rows_sha256: Digest
    """SHA-256 of the file of the rows."""
    unparsed: Count
    """Texts that were no rows, each drawn anew."""
    rejected: Mapping[str, Count]
    """Rows that broke a rule, by the rule; each was drawn anew."""
    left_out: Count
    """Rows that were given up after all attempts."""
    columns: tuple[Column, ...]
    """The synthetic rows, column by column."""


@dataclass(frozen=True, kw_only=True)
class Marginal:
    """A column's values, binned, against real ones."""

    name: str
    """Its name."""
    total_variation: Probability
    """Of synthetic rows from the training rows."""
    of_controls: Probability
    """Of controls from the training rows: what it should be near."""
    real: Mapping[str, Count]
    """Training rows in each bin."""
    synthetic: Mapping[str, Count]
    """Synthetic rows in each bin."""


@dataclass(frozen=True, kw_only=True)
class Associations:
    """Cramér's V of every pair of columns."""

    names: tuple[str, ...]
    """Of the columns."""
    real: tuple[tuple[float, ...], ...]
    """Of the training rows."""
    synthetic: tuple[tuple[float, ...], ...]
    """Of the synthetic rows."""
    mean_difference: NotNegative
    """Mean over pairs of what the two are apart."""
    of_controls: NotNegative
    """The same of controls: what it should be near."""


@dataclass(frozen=True, kw_only=True)
class Usefulness:
    """Accuracy of classifiers of the label, tried on controls."""

    label: str
    """The column."""
    taught: AtLeastOne
    """Rows that each classifier learned from."""
    tested: AtLeastOne
    """Controls that it was tried on."""
    commonest: Probability
    """Of always saying the commonest class."""
    logistic_synthetic: Probability
    """Logistic regression, taught by synthetic rows."""
    logistic_real: Probability
    """The same, taught by as many real rows."""
    boosting_synthetic: Probability
    """Boosted trees, taught by synthetic rows."""
    boosting_real: Probability
    """The same, taught by as many real rows."""
    guessed_of_training: Probability
    """Labels of training rows that the boosted trees of synthetic rows guess."""
    guessed_of_controls: Probability
    """Those of controls: what it should be near."""


@dataclass(frozen=True, kw_only=True)
class TextLikeness:
    """The texts of a column against controls'."""

    name: str
    """The column."""
    why_not: str | None = None
    """Why they are not compared."""
    told_apart: Probability | None = None
    """Texts that a classifier tells from real ones; a coin tells half."""
    p_value: Probability | None = None
    """Probability that a coin does as well."""
    divergence: Mapping[str, float] | None = None
    """Jensen-Shannon divergence of n-grams from controls, in bits, by n."""
    of_controls: Mapping[str, float] | None = None
    """The same between two halves of the controls: what it should be near."""
    mauve: Probability | None = None
    """MAUVE against controls', by features of the generator itself. Absent where there are few."""
    mauve_of_training: Probability | None = None
    """The same of training texts: what it should be near."""


@dataclass(frozen=True, kw_only=True)
class RowLeakage:
    """What of the training rows stands in the synthetic ones."""

    texts: Leakage
    """By the text of a row."""
    whole_rows_of_training: Probability
    """Different training rows that are a synthetic one, in all columns."""
    whole_rows_of_controls: Probability
    """Different controls that are: what it should be near."""


@dataclass(frozen=True, kw_only=True)
class PersonalKind:
    """Different pieces of personal data of a kind."""

    real: Count
    """In the training rows."""
    synthetic: Count
    """In the synthetic rows."""
    synthetic_that_are_real: Count
    """In both."""


@dataclass(frozen=True, kw_only=True)
class PersonalData:
    """Personal data in texts."""

    by: str
    """What looked for them."""
    kinds: Mapping[str, PersonalKind]
    """By their kind."""


@dataclass(frozen=True, kw_only=True)
class Measures(Versioned):
    """private/measures.json: synthetic rows against real ones, for the owner alone."""

    synthetic: AtLeastOne
    """Synthetic rows that were compared."""
    training: AtLeastOne
    """Training rows that were."""
    controls: AtLeastOne
    """Controls that were: rows that neither histogram nor model saw."""
    marginals: tuple[Marginal, ...]
    """Column by column."""
    associations: Associations | None
    """Pair by pair; null of one column."""
    usefulness: Usefulness | str
    """What classifiers learn; or why none is taught."""
    texts: tuple[TextLikeness, ...]
    """Columns of texts."""
    leakage: RowLeakage
    """Copies and long runs."""
    personal: PersonalData | None
    """Personal data; null without texts."""


@dataclass(frozen=True, kw_only=True)
class SynthesisAnswer(Versioned):
    """Output of ``dpft synthesize output=json``."""

    run: str
    """Folder of the synthesis."""
    to: str
    """File of the synthetic rows."""
    statement: Synthesis
    """The public statement."""
    measures: str | None
    """The private file of what the owner is told; null without controls."""
