"""Files of a synthesis and of ``audit=synthetic``: statement, measures, and what commands print.

All measures are tables, which the pages and the terminal show as they are.
"""

from collections.abc import Mapping
from typing import Literal

from dpft.privacy.ledger import LedgerHead
from dpft.privacy.plan import DeltaSource, Relation
from dpft.strict_model import (
    AtLeastOne,
    Count,
    Day,
    Delta,
    Digest,
    NotNegative,
    Positive,
    StrictModel,
    Versioned,
)


class Comparison(StrictModel):
    """A table of numbers."""

    title: str
    """The title."""
    columns: tuple[str, ...]
    """The heads of the columns of numbers."""
    rows: Mapping[str, tuple[float, ...]]
    """The numbers of each row, by its name."""
    note: str | None = None
    """A sentence that explains them."""


class SynthesisPart(StrictModel):
    """A part of a synthesis that read records under noise."""

    name: Literal["histogram", "training"]
    """The part."""
    epsilon: NotNegative
    """Its own epsilon, at the delta of the whole."""
    noise_multiplier: Positive
    """Standard deviation of the noise divided by the sensitivity."""
    steps: AtLeastOne
    """Noisy steps taken."""
    run_id: str
    """The id in the part's ledger."""
    ledger: LedgerHead
    """The ledger when this was written."""


class Synthesis(Versioned):
    """The statement of a synthesis, which may be released with its rows."""

    private: bool
    """Whether epsilon protects anybody: false without noise, or if a test seed made the noise."""
    date: Day
    """Day of the report."""
    epsilon: NotNegative | None = None
    """Epsilon of all parts together; absent without privacy."""
    delta: Delta | None = None
    """The delta of epsilon."""
    delta_source: DeltaSource | None = None
    """The source of delta: given by privacy.delta, or the rule that determines it."""
    accountant: str | None = None
    """The accountant that computes epsilon."""
    eps: Positive | None = None
    """The target epsilon."""
    share: Positive | None = None
    """The share of the target epsilon for the histogram; absent without one."""
    unit: str
    """The privacy unit: example, or a column."""
    unit_definition: str
    """The privacy unit in words."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    noise_source: str
    """The generator of the noise."""
    num_examples: AtLeastOne
    """Number of rows, or of units, which is public."""
    num_examples_source: str
    """Where that number comes from."""
    parts: tuple[SynthesisPart, ...]
    """The parts that read records under noise; nothing else did."""
    warnings: tuple[str, ...]
    """What a reader of epsilon must know, one sentence each."""
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
    """Texts that were not rows, each drawn again."""
    rejected: Mapping[str, Count]
    """Rows that broke a rule, by the rule; each was drawn again."""
    left_out: Count
    """Rows that were given up after all attempts."""
    columns: tuple[Comparison, ...]
    """Synthetic rows by the bins of each column, which follow from the schema."""


class Measures(Versioned):
    """private/measures.json: synthetic rows compared with real rows, only for their owner."""

    tables: tuple[Comparison, ...]
    """The measures; the first table is the summary."""


class SynthesisAnswer(Versioned):
    """Output of ``dpft synthesize output=json``."""

    run: str
    """Folder of the synthesis."""
    to: str
    """File of the synthetic rows."""
    statement: Synthesis
    """The public statement."""
    measures: str | None = None
    """The private file of measures; absent without controls."""


class SyntheticAudit(Versioned):
    """Usefulness of synthetic records, and what they reveal of single records."""

    audit: Literal["synthetic"] = "synthetic"
    """The audit."""
    note: str
    """For whom the result is."""
    private: Literal[True] = True
    """Always: the result compares with private records."""
    synthetic: str
    """Name of the file of synthetic records."""
    limit: AtLeastOne
    """Most records of each kind."""
    released: tuple[Comparison, ...]
    """Tables that follow from the synthetic records and published ones."""
    compared: tuple[Comparison, ...]
    """All tables, also those that compare with private records."""
    remarks: tuple[str, ...]
    """What is not compared and why, one sentence each."""
    epsilon: NotNegative | None = None
    """Epsilon of the run; absent without privacy."""
    delta: NotNegative | None = None
    """Delta of the run; absent without privacy."""
    not_released: str | None = None
    """Why nothing may be released; absent if audit/synthetic.html was written."""
