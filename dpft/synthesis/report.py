"""What a synthesis leaves: the table, its public statement, and the private page for its owner.

Epsilon is computed from the ledgers. The public page describes the synthetic rows by themselves;
everything that compares them with real rows is private.
"""

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from dpft.commands.composition import with_its_tokenizer
from dpft.commands.ledger_account import read_spent
from dpft.data.raw_rows import write_rows
from dpft.errors import StateError
from dpft.evaluation.predictions import spread
from dpft.privacy.accounting import evaluate
from dpft.privacy.accounting.mechanism import Composition
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.ledger import LedgerHead, Noise, as_mechanisms
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import NEIGHBORING_RELATION
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.pages import indented, line, render_page
from dpft.reports.terminal import Answer, Grid
from dpft.run_folder import (
    LEDGER,
    PAGE,
    PRIVATE_PAGE,
    TRAINING,
    private_path,
    read_file,
    write_text,
)
from dpft.strict_model import as_json, description, read_model, write_model
from dpft.synthesis.generate import Drawn
from dpft.synthesis.measures import Tables, binned_counts, frame_of, measured
from dpft.synthesis.plan import ACCOUNTANT, PublicPart, target_file
from dpft.synthesis.records import (
    Comparison,
    Measures,
    Synthesis,
    SynthesisAnswer,
    SynthesisPart,
)
from dpft.synthesis.schema import ID
from dpft.synthesis.table import PrivateTable

SCHEMA_FILE, STATEMENT, MEASURES = "schema.yaml", "synthesis.json", "private/measures.json"
OWNERS = (
    "**This page is for the owner of the data alone: it is made of private rows.** To leave out a"
    " synthetic row because of what is here is a choice by private records, which ε does not cover."
)
NO_FACTS = frozenset({
    "schema_version", "private", "epsilon", "delta", "parts", "warnings", "columns",
})  # fmt: skip
"""Fields of the statement that the table of facts on the public page omits."""
NOT_PRIVATE = "**NOT PRIVATE**: histogram and training had no noise (`privacy=none`)."


def headline(said: Synthesis) -> str:
    """Return the guarantee of a synthesis in one paragraph."""
    if said.epsilon is None or said.delta is None:
        return NOT_PRIVATE
    marked = "" if said.private else " **Reproducible: not private.**"
    return (
        f"The synthetic rows and the model are **(ε = {eps_text(said.epsilon)}, δ ="
        f" {delta_text(said.delta)})-differentially private**, histogram and training together, by"
        f" {said.accountant}. The unit is {said.unit_definition}; there are {said.num_examples},"
        f" which is taken as public.{marked}"
    )


def cells(table: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of a table as texts: counts as they are, other numbers with three digits."""
    return [
        (name, *(str(each) if isinstance(each, int) else f"{each:.3f}" for each in values))
        for name, values in table.rows.items()
    ]


def grid(table: Comparison) -> Grid:
    """Return a table of numbers for a terminal."""
    return Grid(title=table.title, columns=("", *table.columns), rows=cells(table))


def section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> str:
    """Return a table with its title and a note in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(map(line, each))} |" for each in lines)
    return f"## {line(title)}\n\n{table}\n\n{note}"


def sections(tables: Iterable[Comparison]) -> list[str]:
    """Return tables of numbers in Markdown; empty ones are left out."""
    return [
        section(table.title, ("", *table.columns), cells(table), line(table.note or ""))
        for table in tables
        if table.rows
    ]


def public_page(said: Synthesis, schema: str) -> str:
    """Return the page that may be released with the synthetic rows."""
    parts = [
        (p.name, eps_text(p.epsilon), f"{p.noise_multiplier:.4g}", str(p.steps), p.ledger.head)
        for p in said.parts
    ]
    facts = [
        (
            description(Synthesis, key).rstrip("."),
            value if isinstance(value, str) else json.dumps(value),
        )
        for key, value in as_json(said).items()
        if key not in NO_FACTS
    ]
    columns = ("part", "ε alone", "noise multiplier", "noisy steps", "head of its ledger")
    note = (
        "Nothing else read a record. The ε of each part is its own, at the δ of the whole; together"
        " they are composed, not added. `dpft account run=FOLDER` computes the same from the"
        " training's ledger, whose first line names the histogram."
    )
    text = [headline(said), *said.warnings, "# A synthetic table"]
    text += [section("What ε covers", columns, parts, note)] if parts else []
    text += [section("What was made", ("", ""), facts, ""), *sections(said.columns)]
    return render_page("A synthetic table", "\n\n".join([*text, "## The schema", indented(schema)]))


def write_outcome(part: PublicPart, table: PrivateTable, drawn: Drawn, folder: Path) -> None:
    """Write the table with new ids, its statement and the pages.

    Raises:
        StateError: A ledger is gone or damaged.
    """
    schema = part.schema
    columns = [column for column in schema.columns if column.is_learned or column.kind == ID]
    write_rows(target_file(part.config, folder), [
        {c.name: number if c.kind == ID else row[c.name] for c in columns}
        for number, row in enumerate(drawn.rows, start=1)
    ])  # fmt: skip
    said = statement(part, drawn, folder)
    write_model(folder / STATEMENT, said)
    if table.held:
        limit = part.config.eval.limit
        sides = (drawn.rows, table.of(table.kept), table.of(table.held))
        chosen = ([side[at] for at in spread(len(side), limit)] for side in sides)
        tables = measured(schema, Tables(*(frame_of(schema, side) for side in chosen)))
        faults = {fault: (count,) for fault, count in table.faults.items()}
        tables += (Comparison(title="Invalid rows", columns=("rows",), rows=faults),)
        write_model(private_path(folder, MEASURES), Measures(tables=tables), mode=0o600)
        title = "Synthetic rows against real ones"
        page = [OWNERS, headline(said), f"# {title}", *sections(tables)]
        content = render_page(title, "\n\n".join(page))
        write_text(private_path(folder, PRIVATE_PAGE), content, mode=0o600)
    text = (folder / SCHEMA_FILE).read_text(encoding="utf-8")
    write_text(folder / PAGE, public_page(said, text))


def statement(part: PublicPart, drawn: Drawn, folder: Path) -> Synthesis:
    """Return the public statement."""
    config, guarantee = part.config, part.guarantee
    rows = {"rows": frame_of(part.schema, drawn.rows)}
    is_seeded = guarantee is not None and guarantee.noise_seed is not None
    said = Synthesis(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        private=guarantee is not None and not is_seeded,
        unit=config.privacy.unit,
        unit_definition=part.unit_definition,
        neighboring_relation=NEIGHBORING_RELATION,
        noise_source=NOISE_SOURCE if guarantee is not None else "none",
        num_examples=part.num_examples,
        num_examples_source=part.num_examples_source,
        parts=(),
        warnings=(),
        schema_sha256=digest(folder / SCHEMA_FILE),
        condition=config.condition,
        model=config.model.name,
        method=config.method.name,
        rows=len(drawn.rows),
        rows_sha256=digest(target_file(config, folder)),
        unparsed=drawn.unparsed,
        rejected=drawn.rejected,
        left_out=(config.num or part.num_examples) - len(drawn.rows),
        columns=tuple(binned_counts(column, rows) for column in part.schema.learned),
    )
    if guarantee is None or guarantee.eps is None or part.delta is None:
        return said
    said = said.replace(
        delta=part.delta,
        delta_source=part.delta_source,
        accountant=ACCOUNTANT,
        eps=guarantee.eps,
        share=None if part.counts is None else guarantee.share,
    )
    said = with_epsilon(said, folder)
    warnings = [NOT_PRIVATE_SEED] if is_seeded else []
    warnings += delta_warnings(part.delta, part.num_examples, source=part.delta_source)
    training = read_spent(str(folder / TRAINING))
    if training.plan.tokenizer is not None:
        warnings.append(with_its_tokenizer(training, part.delta))
    if said.epsilon is not None and said.epsilon > guarantee.eps:
        warnings.append(
            f"more noisy steps were taken than planned, after a crash: epsilon is above the"
            f" {guarantee.eps:g} that was asked for"
        )
    return said.replace(warnings=tuple(warnings))


def with_epsilon(said: Synthesis, folder: Path) -> Synthesis:
    """Return a statement with epsilon of the whole and of each part, computed from the ledgers.

    Raises:
        StateError: A ledger is gone, is damaged, or is not closed.
    """

    def epsilon(taken: Mapping[Noise, int]) -> float:
        composition = Composition(parts=as_mechanisms(taken, said.delta or 0.0))
        answer = evaluate(ACCOUNTANT, composition).upper
        assert answer is not None
        return answer

    parts: dict[Literal["histogram", "training"], Path] = {"training": folder / TRAINING}
    if said.share is not None:
        parts = {"histogram": folder, **parts}
    taken = []
    for name, place in parts.items():
        if not (place / LEDGER).exists():
            raise StateError(f"{place / LEDGER} is gone; put it back as it was.")
        spent = read_spent(str(place))
        if not spent.ledger.closed:
            raise StateError(f"{place / LEDGER} is not closed; put it back.")
        part = SynthesisPart(
            name=name,
            epsilon=epsilon(spent.taken),
            noise_multiplier=min(noise.noise_multiplier for noise in spent.taken),
            steps=spent.steps,
            run_id=str(spent.ledger.run_id),
            ledger=LedgerHead(lines=spent.ledger.lines, head=spent.ledger.head),
        )
        taken.append(part)
    return said.replace(epsilon=epsilon(spent.whole), parts=tuple(taken))


def is_whole(folder: Path, target: Path) -> bool:
    """Return whether a synthesis is finished: its rows are those of its statement."""
    is_written = (folder / PAGE).exists() and target.exists()
    return is_written and read_model(folder / STATEMENT, Synthesis).rows_sha256 == digest(target)


def finished(folder: Path, target: Path) -> Answer:
    """Return the output of the command, which contains no private measure."""
    said = read_model(folder / STATEMENT, Synthesis)
    if said.delta is not None:
        said = with_epsilon(said, folder)
    parts: list[Grid | str] = [headline(said), *(f"Warning: {each}" for each in said.warnings)]
    files = {"synthetic rows": str(target), "public page": str(folder / PAGE)}
    measures = str(folder / MEASURES) if (folder / MEASURES).exists() else None
    if measures is not None:
        files["private page, for you alone"] = str(folder / PRIVATE_PAGE)
    parts.append(Grid(rows=list(files.items()), title="Files"))
    record = SynthesisAnswer(run=str(folder), to=str(target), statement=said, measures=measures)
    return Answer(table=parts, record=record)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(read_file(path)).hexdigest()
