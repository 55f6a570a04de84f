"""What a synthesis promises in public, and what its owner alone is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dpft.records.bounds import DeltaSource, Relation
from dpft.records.form import Limits, Part, Rule, Rules
from dpft.records.ledger import LedgerHead
from dpft.records.promises import SeedMarked
from dpft.records.values import (
    AtLeastOne,
    Count,
    Day,
    Delta,
    Digest,
    NotNegative,
    Positive,
    Versioned,
)


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
        *SeedMarked.RULES,
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
