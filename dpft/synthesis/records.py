"""The files of a synthesis: statement, measures, and the output of the command.

All measures, including the measures of ``audit=synthetic``, are tables. The pages and the terminal
show these tables unchanged.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from dpft.privacy.ledger import LedgerHead
from dpft.privacy.plan import DeltaSource, Relation
from dpft.reports.rendering import line
from dpft.reports.terminal import Grid
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

OWNERS = (
    "**This page is only for the owner of the data, because it is made from private rows.** ε does"
    " not cover a choice of synthetic rows that is based on this page."
)


class Comparison(StrictModel):
    """A table of numbers."""

    title: str
    """Title of the table."""
    columns: tuple[str, ...]
    """Headings of the columns of numbers."""
    rows: Mapping[str, tuple[float, ...]]
    """Numbers of each row, by the name of the row."""
    note: str | None = None
    """A sentence that explains the numbers."""


def cells(table: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of a table as text: integers unchanged, other numbers with three decimals."""
    return [
        (name, *(str(value) if isinstance(value, int) else f"{value:.3f}" for value in values))
        for name, values in table.rows.items()
    ]


def grid(table: Comparison) -> Grid:
    """Return a table of numbers for a terminal."""
    return Grid(title=table.title, columns=("", *table.columns), rows=cells(table))


def section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> str:
    """Return a table with its title and a note, in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(map(line, row))} |" for row in lines)
    return f"## {line(title)}\n\n{table}\n\n{note}"


def sections(tables: Iterable[Comparison]) -> list[str]:
    """Return tables of numbers in Markdown, without empty tables."""
    return [
        section(table.title, ("", *table.columns), cells(table), line(table.note or ""))
        for table in tables
        if table.rows
    ]


class SynthesisPart(StrictModel):
    """A part of a synthesis that read records under noise."""

    name: Literal["histogram", "training"]
    """Name of the part."""
    epsilon: NotNegative
    """Epsilon of this part by itself, at the delta of the whole."""
    noise_multiplier: Positive
    """Standard deviation of the noise divided by the sensitivity."""
    steps: AtLeastOne
    """Noisy steps taken."""
    run_id: str
    """The run id in the part's ledger."""
    ledger: LedgerHead
    """The ledger when this statement was written."""


class Synthesis(Versioned):
    """The public statement of a synthesis, which may be released with its rows."""

    private: bool
    """Whether epsilon gives a guarantee; false without noise, or if a test seed determined the
    noise."""
    date: Day
    """Day of the report."""
    epsilon: NotNegative | None = None
    """Epsilon of all parts together; absent without privacy."""
    delta: Delta | None = None
    """The delta at which epsilon holds."""
    delta_source: DeltaSource | None = None
    """The source of delta: given by privacy.delta, or the rule that determines it."""
    accountant: str | None = None
    """The accountant that computes epsilon."""
    eps: Positive | None = None
    """The target epsilon."""
    share: Positive | None = None
    """The share of the target epsilon for the histogram; absent without a histogram."""
    unit: str
    """The privacy unit: example, or a column."""
    unit_definition: str
    """Description of the privacy unit."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    noise_source: str
    """The generator of the noise."""
    num_examples: AtLeastOne
    """Number of rows or units, which is public."""
    num_examples_source: str
    """The source of that number."""
    parts: tuple[SynthesisPart, ...]
    """The parts that read records under noise; no other part reads records."""
    warnings: tuple[str, ...]
    """Warnings that a reader of epsilon needs, one sentence each."""
    schema_sha256: Digest
    """SHA-256 of schema.yaml."""
    condition: tuple[str, ...]
    """Columns of the histogram."""
    model: str
    """The generator before training."""
    method: str
    """The fine-tuning method."""
    rows: Count
    """Number of synthetic rows."""
    rows_sha256: Digest
    """SHA-256 of the file that contains the rows."""
    unparsed: Count
    """Number of texts that were not rows; each was drawn again."""
    rejected: Mapping[str, Count]
    """Number of rows that broke each rule; each was drawn again."""
    left_out: Count
    """Number of rows that were skipped after all attempts."""
    columns: tuple[Comparison, ...]
    """Numbers of synthetic rows in the bins of each column, which follow from the schema."""


class Measures(Versioned):
    """Content of private/measures.json: synthetic rows compared with real rows, for the owner."""

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
