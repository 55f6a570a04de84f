"""What a synthesis leaves: the table, its public statement, and the private page for its owner.

The statement says what read the records, from their ledgers alone, and describes the synthetic rows
by themselves. Whatever compares them with real rows is private.
"""

import datetime
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpft.data.raw_rows import write_rows
from dpft.errors import StateError
from dpft.evaluation.predictions import spread
from dpft.files import LEDGER, PAGE, PRIVATE_PAGE, TRAINING, private_path, read_file, write_text
from dpft.privacy.accounting import Accountants
from dpft.privacy.accounting.mechanism import Composition
from dpft.privacy.ledger import Noise, as_mechanisms, read_ledger
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import NEIGHBORING_RELATION, PrivacyPlan
from dpft.records import synthesis as records
from dpft.records.form import read_record, write_record
from dpft.records.ledger import LedgerHead
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.terminal import Grid
from dpft.runs.composition import with_its_tokenizer
from dpft.runs.saved_run import SpentRun, read_spent, read_spent_of_synthesis
from dpft.synthesis.columns import Identity
from dpft.synthesis.generator import Drawn, generator_features
from dpft.synthesis.measures import Tables, measured
from dpft.synthesis.page import private_page, public_page, terminal
from dpft.synthesis.plan import (
    ACCOUNTANT,
    SCHEMA_FILE,
    Budget,
    PublicPart,
    delta_source,
    unit_definition,
)
from dpft.synthesis.schema import Row, Schema
from dpft.synthesis.stretches import marginal
from dpft.synthesis.table import PrivateTable

HISTOGRAM, TRAINED = "histogram", "training"
"""The parts that read records under noise."""
STATEMENT, MEASURES = "synthesis.json", "private/measures.json"


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


def write_outcome(
    part: PublicPart,
    table: PrivateTable,
    budget: Budget,
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
    kept, held = sides
    if held:
        measures = compared(part, table, kept, held, drawn.rows, folder)
        write_record(private_path(folder, MEASURES), measures, mode=0o600)
        page = private_page(said, measures, dict(table.faults))
        write_text(private_path(folder, PRIVATE_PAGE), page, mode=0o600)
    schema = (folder / SCHEMA_FILE).read_text(encoding="utf-8")
    write_text(folder / PAGE, public_page(said, schema))


def compared(
    part: PublicPart,
    table: PrivateTable,
    kept: Sequence[int],
    held: Sequence[int],
    rows: Sequence[Row],
    folder: Path,
) -> records.Measures:
    """Returns every measure of at most ``eval.limit`` rows of each kind."""
    limit = part.config.eval.limit
    sides = [[table.rows[at] for at in side] for side in (kept, held)]
    training, controls = ([row for row in side if row is not None] for side in sides)
    synthetic, training, controls = (
        [each[at] for at in spread(len(each), limit)] for each in (rows, training, controls)
    )
    tables = Tables(synthetic=synthetic, training=training, controls=controls)
    return measured(part.schema, tables, generator_features(part, folder))


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A synthesis that has ended, for people and for programs."""

    parts: Sequence[Grid | str]
    """What a terminal shows."""
    record: records.SynthesisAnswer
    target: Path
    """The file of the synthetic rows."""


def is_whole(folder: Path, target: Path) -> bool:
    """Returns whether a synthesis has ended: its rows are there, as its last page says of them.

    Raises:
        StateError: A ledger that its statement names is gone, or is another.
    """
    if not (folder / PAGE).exists() or not target.exists():
        return False
    said = read_record(folder / STATEMENT, records.Synthesis)
    for part in said.parts:
        path = (folder if part.name == HISTOGRAM else folder / TRAINING) / LEDGER
        if not path.exists() or read_ledger(path).head != part.ledger.head:
            raise StateError(
                f"{path} is gone, or not the ledger that {folder / STATEMENT} names; put it back"
                " as it was."
            )
    return said.rows_sha256 == _digest(target)


def finished(folder: Path, target: Path) -> Finished:
    """Returns what the command prints; what is private only to a terminal, not into a pipe."""
    said = read_record(folder / STATEMENT, records.Synthesis)
    path = folder / MEASURES
    shown = path.exists() and sys.stdout.isatty()
    measures = read_record(path, records.Measures) if shown else None
    files = {"synthetic rows": str(target), "public page": str(folder / PAGE)}
    if path.exists():
        files["private page, for you alone"] = str(folder / PRIVATE_PAGE)
    record = records.SynthesisAnswer(
        run=str(folder),
        to=str(target),
        statement=said,
        measures=str(path) if path.exists() else None,
    )
    return Finished(parts=terminal(said, measures, files), record=record, target=target)


def spent_parts(part: PublicPart, budget: Budget, folder: Path) -> list[tuple[str, SpentRun]]:
    """Returns what each part spent, by its ledger, once that is known to be the planned one's.

    Raises:
        StateError: One is not there, is not closed, or is of another plan.
    """
    if part.guarantee is None:
        return []
    spent = [(TRAINED, read_spent_of_synthesis(str(folder)))]
    if budget.counts is not None:
        spent.insert(0, (HISTOGRAM, read_spent(str(folder))))
    for name, run in spent:
        plan, noise = run.plan, budget.noise_multiplier
        if isinstance(plan, PrivacyPlan):
            is_planned = plan.noise_multiplier == noise and plan.delta == budget.delta
            is_planned = is_planned and (plan.counts is None) == (budget.counts is None)
        else:
            noise = None if budget.counts is None else budget.counts.noise_multiplier
            is_planned = run.ledger.mechanisms[0]["noise_multiplier"] == noise
        is_planned = is_planned and plan.num_examples == budget.num_examples
        if not is_planned or plan.unit != part.guarantee.unit or not run.ledger.closed:
            raise StateError(
                f"{Path(run.folder) / LEDGER} must be the closed ledger of the planned {name}, got"
                " another; put it back as it was."
            )
    return spent


def statement(
    part: PublicPart,
    budget: Budget,
    drawn: Drawn,
    spent: Sequence[tuple[str, SpentRun]],
    folder: Path,
    target: Path,
) -> records.Synthesis:
    """Returns the public statement."""
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
    if guarantee is None or budget.delta is None or guarantee.eps is None:
        return said
    training = spent[-1][1]
    with Accountants() as accountants:
        whole = _epsilon(training.whole, budget.delta, accountants)
        alone = [_epsilon(run.taken, budget.delta, accountants) for _, run in spent]
        warnings = delta_warnings(budget.delta, budget.num_examples, source=delta_source(part))
        if training.plan.tokenizer is not None:
            warnings.append(with_its_tokenizer(training, budget.delta, accountants))
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
    if guarantee.noise_seed is not None:
        warnings.insert(0, NOT_PRIVATE_SEED)
    if whole > guarantee.eps:
        warnings.append(
            f"more noisy steps were taken than planned, after a crash: epsilon is above the"
            f" {guarantee.eps:g} that was asked for"
        )
    return replace(
        said,
        epsilon=whole,
        delta=budget.delta,
        delta_source=delta_source(part),
        accountant=ACCOUNTANT,
        eps=guarantee.eps,
        share=None if budget.counts is None else guarantee.share,
        parts=parts,
        warnings=tuple(warnings),
    )


def _epsilon(taken: Mapping[Noise, int], delta: float, accountants: Accountants) -> float:
    parts = as_mechanisms(taken, delta)
    found = accountants.evaluate(ACCOUNTANT, Composition(parts=parts)).upper
    assert found is not None
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()
