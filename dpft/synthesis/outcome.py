"""What a synthesis leaves: the table, its public statement, and the private page for its owner.

The statement says what read the records, from their ledgers alone, and describes the synthetic rows
by themselves. Whatever compares them with real rows is private.
"""

import datetime
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpft.data.writers import write_rows
from dpft.errors import StateError
from dpft.files import read_file
from dpft.privacy.accounting import Accountants
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import NEIGHBORING_RELATION, PrivacyPlan
from dpft.privacy.spending import added_up
from dpft.records import synthesis as records
from dpft.records.form import read_record, write_record
from dpft.records.ledger import LedgerHead
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.run_folder import LEDGER
from dpft.runs.spending.bounds import account_taken
from dpft.runs.spending.spent_run import SpentRun, read_spent
from dpft.synthesis.columns import Category, Column, Day, Flag, Identity, Number, Text
from dpft.synthesis.generator import Drawn
from dpft.synthesis.schema import Row, Schema

STATEMENT, SCHEMA_FILE, TRAINING = "synthesis.json", "schema.yaml", "training"
STRETCHES = 10
"""Equal stretches of a range in which numbers and days are counted."""
EXACT = "gaussian"


def write_table(path: Path, schema: Schema, rows: Sequence[Row]) -> None:
    """Writes the synthetic rows, in the schema's order, ids made anew."""
    shown = [
        {
            column.name: number if isinstance(column, Identity) else column.cell(row[column.name])
            for column in schema.columns
            if column.is_learned or isinstance(column, Identity)
        }
        for number, row in enumerate(rows, start=1)
    ]
    write_rows(path, shown)


def described(schema: Schema, rows: Sequence[Row]) -> tuple[records.Column, ...]:
    """Returns the synthetic rows, column by column."""
    return tuple(
        records.Column(
            name=column.name,
            type=column.kind,
            missing=sum(row[column.name] is None for row in rows),
            counts=marginal(column, [row[column.name] for row in rows]),
        )
        for column in schema.learned
    )


def marginal(column: Column, values: Sequence[Any]) -> dict[str, int]:
    """Returns how often a column's values stand there, by value or by stretch of its range."""
    there = [value for value in values if value is not None]
    if isinstance(column, Category | Flag):
        found = Counter(there)
        options = [option for option in column.options if option is not None]
        return {str(column.cell(option)): found[option] for option in options}
    if isinstance(column, Text):
        counts = Counter(len(value.split()) // 5 * 5 for value in there)
        return {f"{least} to {least + 4} words": counts[least] for least in sorted(counts)}
    places = Counter(stretch(column, value) for value in there)
    return {stretch_name(column, at): places[at] for at in range(STRETCHES) if places[at]}


def stretch(column: Column, value: Any) -> int:
    """Returns which of ten equal stretches of its column's range a value is in, from 0."""
    if isinstance(column, Day):
        days: int = (value - column.first).days
        return days * STRETCHES // _span_of_days(column)
    assert isinstance(column, Number)
    return int((Decimal(value) - column.low) * STRETCHES // _span(column))


def stretch_name(column: Column, at: int) -> str:
    """Returns where a stretch begins."""
    if isinstance(column, Day):
        days = -(-at * _span_of_days(column) // STRETCHES)
        return f"from {column.first + datetime.timedelta(days=days)}"
    assert isinstance(column, Number)
    return f"from {column.low + at * _span(column) / STRETCHES:.{column.places + 1}f}"


def _span(column: Number) -> Decimal:
    return column.high - column.low + column.size


def _span_of_days(column: Day) -> int:
    return (column.last - column.first).days + 1


def write_outcome(
    part: Any,
    table: Any,
    budget: Any,
    sides: tuple[Sequence[int], Sequence[int]],
    drawn: Drawn,
    folder: Path,
    target: Path,
) -> None:
    """Writes the table, its statement and the pages.

    Args:
        part: The synthesis's public part.
        table: The private one.
        budget: How the noise was divided.
        sides: Places of the rows learned from, and of the controls.
        drawn: The synthetic rows.
        folder: Of the synthesis.
        target: The file of the synthetic rows.

    Raises:
        StateError: A ledger is not the one that was planned.
    """
    write_table(target, part.schema, drawn.rows)
    spent = spent_parts(part, budget, folder)
    said = statement(part, budget, drawn, spent, folder, target)
    write_record(folder / STATEMENT, said)


def spent_parts(part: Any, budget: Any, folder: Path) -> list[tuple[str, SpentRun]]:
    """Returns what each part spent, by its ledger, once that is known to be the planned one's.

    Raises:
        StateError: One is not there, is not closed, or is of another plan.
    """
    if part.guarantee is None:
        return []
    found = [("training", folder / TRAINING)]
    if budget.counts is not None:
        found.insert(0, ("histogram", folder))
    spent = [(name, read_spent(str(place))) for name, place in found]
    for name, run in spent:
        plan, noise = run.plan, budget.noise_multiplier
        if isinstance(plan, PrivacyPlan):
            is_planned = plan.noise_multiplier == noise and plan.delta == budget.delta
        else:
            noise = budget.counts.noise_multiplier
            is_planned = run.ledger.mechanisms[0]["noise_multiplier"] == noise
        is_planned = is_planned and plan.num_examples == budget.num_examples
        if not is_planned or plan.unit != part.guarantee.unit or not run.ledger.closed:
            raise StateError(
                f"{Path(run.folder) / LEDGER} must be the closed ledger of the planned {name}, got"
                " another; put it back as it was."
            )
    return spent


def statement(
    part: Any,
    budget: Any,
    drawn: Drawn,
    spent: Sequence[tuple[str, SpentRun]],
    folder: Path,
    target: Path,
) -> records.Synthesis:
    """Returns the public statement."""
    from dpft.synthesis.command import delta_source, unit_definition

    config, guarantee = part.config, part.guarantee
    said = records.Synthesis(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        private=guarantee is not None and guarantee.noise_seed is None,
        reproducible=True if guarantee is not None and guarantee.noise_seed is not None else None,
        unit=config.privacy.unit,
        unit_definition=unit_definition(part),
        neighboring_relation=NEIGHBORING_RELATION,
        noise_source=NOISE_SOURCE if guarantee is not None else "none",
        num_examples=budget.num_examples,
        num_examples_source=budget.source,
        parts=(),
        warnings=(),
        schema_sha256=_digest(folder / SCHEMA_FILE),
        condition=config.condition,
        model=config.model.name,
        method=config.method.name,
        rows=len(drawn.rows),
        rows_sha256=_digest(target),
        unparsed=drawn.unparsed,
        rejected=drawn.rejected,
        left_out=drawn.left_out,
        columns=described(part.schema, drawn.rows),
    )
    if guarantee is None:
        return said
    taken = added_up(*(run.taken for _, run in spent))
    with Accountants() as accountants:
        whole = account_taken(taken, budget.delta, "pld", accountants)
        alone = [
            account_taken(run.taken, budget.delta, "pld", accountants).epsilon for _, run in spent
        ]
    parts = tuple(
        records.SynthesisPart(
            name=name,
            epsilon=epsilon,
            noise_multiplier=min(noise.noise_multiplier for noise in run.taken),
            steps=run.steps,
            run_id=str(run.ledger.run_id),
            ledger=LedgerHead(lines=run.ledger.lines, head=run.ledger.head),
        )
        for (name, run), epsilon in zip(spent, alone, strict=True)
    )
    warnings = [NOT_PRIVATE_SEED] if guarantee.noise_seed is not None else []
    warnings += delta_warnings(budget.delta, budget.num_examples, source=delta_source(part))
    if whole.epsilon > guarantee.eps:
        warnings.append(
            f"more noisy steps were taken than planned, after a crash: epsilon is above the"
            f" {guarantee.eps:g} that was asked for"
        )
    return replace(
        said,
        epsilon=whole.epsilon,
        delta=budget.delta,
        delta_source=delta_source(part),
        accountant=whole.accountant,
        eps=guarantee.eps,
        share=None if budget.counts is None else guarantee.share,
        parts=parts,
        warnings=tuple(warnings),
    )


def read_statement(folder: Path) -> records.Synthesis:
    """Returns the public statement of a synthesis.

    Raises:
        StateError: It is damaged.
    """
    return read_record(folder / STATEMENT, records.Synthesis)


def _digest(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()
