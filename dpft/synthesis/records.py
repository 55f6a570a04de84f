"""The files of a synthesis: statement, measures, and the answer of the command.

All measures, and those of ``audit=synthetic``, are tables, which the pages and the terminal show as
they are.
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
    "**This page is for the owner of the data alone: it is made of private rows.** To leave out a"
    " synthetic row because of what is here is a choice by private records, which ε does not cover."
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


def cells(table: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of a table as texts: counts as they are, other numbers with three digits."""
    return [
        (name, *(str(value) if isinstance(value, int) else f"{value:.3f}" for value in values))
        for name, values in table.rows.items()
    ]


def grid(table: Comparison) -> Grid:
    """Return a table of numbers for a terminal."""
    return Grid(title=table.title, columns=("", *table.columns), rows=cells(table))


def section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> str:
    """Return a table with its title and a note in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(map(line, row))} |" for row in lines)
    return f"## {line(title)}\n\n{table}\n\n{note}"


def sections(tables: Iterable[Comparison]) -> list[str]:
    """Return tables of numbers in Markdown; empty ones are left out."""
    return [
        section(table.title, ("", *table.columns), cells(table), line(table.note or ""))
        for table in tables
        if table.rows
    ]


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
