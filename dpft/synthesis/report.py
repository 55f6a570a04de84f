"""Result files of a synthesis: the table, its public statement, and a private report.

Epsilon is computed from the ledgers. The public page describes only the synthetic rows. Everything
that compares them with real rows is private.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping
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
from dpft.reports.rendering import indented, render_page
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
from dpft.synthesis.measures import Tables, binned_counts, compare_tables, frame_of
from dpft.synthesis.plan import ACCOUNTANT, SynthesisPlan, target_file
from dpft.synthesis.records import (
    OWNERS,
    Comparison,
    Measures,
    Synthesis,
    SynthesisAnswer,
    SynthesisPart,
    section,
    sections,
)
from dpft.synthesis.schema import ID
from dpft.synthesis.table import PrivateTable

SCHEMA_FILE, STATEMENT, MEASURES = "schema.yaml", "synthesis.json", "private/measures.json"
NO_FACTS = frozenset({
    "schema_version", "private", "epsilon", "delta", "parts", "warnings", "columns",
})  # fmt: skip
"""Fields of the statement that the table of facts on the public page omits."""
NOT_PRIVATE = "**NOT PRIVATE**: histogram and training had no noise (`privacy=none`)."


def headline(synthesis: Synthesis) -> str:
    """Return the guarantee of a synthesis in one paragraph."""
    if synthesis.epsilon is None or synthesis.delta is None:
        return NOT_PRIVATE
    marked = "" if synthesis.private else " **Reproducible: not private.**"
    return (
        f"The synthetic rows and the model are **(ε = {eps_text(synthesis.epsilon)}, δ ="
        f" {delta_text(synthesis.delta)})-differentially private**, histogram and training"
        f" together, by {synthesis.accountant}. The unit is {synthesis.unit_definition}; there are"
        f" {synthesis.num_examples}, which is taken as public.{marked}"
    )


def public_page(synthesis: Synthesis, schema: str) -> str:
    """Return the page that may be released with the synthetic rows."""
    parts = [
        (p.name, eps_text(p.epsilon), f"{p.noise_multiplier:.4g}", str(p.steps), p.ledger.head)
        for p in synthesis.parts
    ]
    facts = [
        (
            description(Synthesis, key).rstrip("."),
            value if isinstance(value, str) else json.dumps(value),
        )
        for key, value in as_json(synthesis).items()
        if key not in NO_FACTS
    ]
    columns = ("part", "its ε", "noise multiplier", "noisy steps", "head of its ledger")
    note = (
        "No other part read a record. The ε of each part is stated at the δ of the whole. Together"
        " they are composed, not added. `dpft account run=FOLDER` computes the same from the"
        " training's ledger, which contains the histogram in its first line."
    )
    text = [headline(synthesis), *synthesis.warnings, "# A synthetic table"]
    text += [section("What ε covers", columns, parts, note)] if parts else []
    text += [section("What was made", ("", ""), facts, ""), *sections(synthesis.columns)]
    return render_page("A synthetic table", "\n\n".join([*text, "## The schema", indented(schema)]))


def write_outcome(plan: SynthesisPlan, table: PrivateTable, drawn: Drawn, folder: Path) -> None:
    """Write the table with new ids, its statement and the pages.

    Raises:
        StateError: A ledger is missing or damaged.
    """
    schema = plan.rows.schema
    columns = [column for column in schema.columns if column.is_learned or column.kind == ID]
    write_rows(target_file(plan.config, folder), [
        {c.name: number if c.kind == ID else row[c.name] for c in columns}
        for number, row in enumerate(drawn.rows, start=1)
    ])  # fmt: skip
    synthesis = statement(plan, drawn, folder)
    write_model(folder / STATEMENT, synthesis)
    if table.controls:
        limit = plan.config.eval.limit
        sides = (drawn.rows, table.rows_at(table.kept), table.rows_at(table.controls))
        chosen = ([side[at] for at in spread(len(side), limit)] for side in sides)
        tables = compare_tables(schema, Tables(*(frame_of(schema, side) for side in chosen)))
        faults = {fault: (count,) for fault, count in table.faults.items()}
        tables += (Comparison(title="Invalid rows", columns=("rows",), rows=faults),)
        write_model(private_path(folder, MEASURES), Measures(tables=tables), mode=0o600)
        title = "Synthetic rows against real ones"
        page = [OWNERS, headline(synthesis), f"# {title}", *sections(tables)]
        content = render_page(title, "\n\n".join(page))
        write_text(private_path(folder, PRIVATE_PAGE), content, mode=0o600)
    text = (folder / SCHEMA_FILE).read_text(encoding="utf-8")
    write_text(folder / PAGE, public_page(synthesis, text))


def statement(plan: SynthesisPlan, drawn: Drawn, folder: Path) -> Synthesis:
    """Return the public statement."""
    config, guarantee = plan.config, plan.guarantee
    rows = {"rows": frame_of(plan.rows.schema, drawn.rows)}
    is_seeded = guarantee is not None and guarantee.noise_seed is not None
    synthesis = Synthesis(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        private=guarantee is not None and not is_seeded,
        unit=config.privacy.unit,
        unit_definition=plan.unit_definition,
        neighboring_relation=NEIGHBORING_RELATION,
        noise_source=NOISE_SOURCE if guarantee is not None else "none",
        num_examples=plan.num_examples,
        num_examples_source=plan.num_examples_source,
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
        left_out=(config.num or plan.num_examples) - len(drawn.rows),
        columns=tuple(binned_counts(column, rows) for column in plan.rows.schema.learned),
    )
    if guarantee is None or guarantee.eps is None or plan.delta is None:
        return synthesis
    synthesis = synthesis.replace(
        delta=plan.delta,
        delta_source=plan.delta_source,
        accountant=ACCOUNTANT,
        eps=guarantee.eps,
        share=None if plan.counts is None else guarantee.share,
    )
    synthesis = with_epsilon(synthesis, folder)
    warnings = [NOT_PRIVATE_SEED] if is_seeded else []
    warnings += delta_warnings(plan.delta, plan.num_examples, source=plan.delta_source)
    training = read_spent(str(folder / TRAINING))
    if training.plan.tokenizer is not None:
        warnings.append(with_its_tokenizer(training, plan.delta))
    if synthesis.epsilon is not None and synthesis.epsilon > guarantee.eps:
        warnings.append(
            f"more noisy steps were taken than planned, after a crash: epsilon is above the"
            f" {guarantee.eps:g} that was asked for"
        )
    return synthesis.replace(warnings=tuple(warnings))


def with_epsilon(synthesis: Synthesis, folder: Path) -> Synthesis:
    """Return a statement with the epsilons of the whole and of each part, from the ledgers.

    Raises:
        StateError: A ledger is missing, damaged, or not closed.
    """

    def epsilon(steps: Mapping[Noise, int]) -> float:
        composition = Composition(parts=as_mechanisms(steps, synthesis.delta or 0.0))
        answer = evaluate(ACCOUNTANT, composition).upper
        assert answer is not None
        return answer

    parts: dict[Literal["histogram", "training"], Path] = {"training": folder / TRAINING}
    if synthesis.share is not None:
        parts = {"histogram": folder, **parts}
    synthesis_parts = []
    for name, place in parts.items():
        if not (place / LEDGER).exists():
            raise StateError(f"{place / LEDGER} is missing. Restore the file.")
        spent = read_spent(str(place))
        if not spent.ledger.closed:
            raise StateError(f"{place / LEDGER} is not closed. Restore the file.")
        part = SynthesisPart(
            name=name,
            epsilon=epsilon(spent.taken),
            noise_multiplier=min(noise.noise_multiplier for noise in spent.taken),
            steps=spent.steps,
            run_id=str(spent.ledger.run_id),
            ledger=LedgerHead(lines=spent.ledger.lines, head=spent.ledger.head),
        )
        synthesis_parts.append(part)
    return synthesis.replace(epsilon=epsilon(spent.whole), parts=tuple(synthesis_parts))


def is_finished(folder: Path, target: Path) -> bool:
    """Return whether a synthesis is finished, which requires the statement's rows on disk."""
    is_written = (folder / PAGE).exists() and target.exists()
    return is_written and read_model(folder / STATEMENT, Synthesis).rows_sha256 == digest(target)


def answer_of(folder: Path, target: Path) -> Answer:
    """Return the output of the command, which contains no private measures."""
    synthesis = read_model(folder / STATEMENT, Synthesis)
    if synthesis.delta is not None:
        synthesis = with_epsilon(synthesis, folder)
    files = {"synthetic rows": str(target), "public page": str(folder / PAGE)}
    measures = str(folder / MEASURES) if (folder / MEASURES).exists() else None
    if measures is not None:
        files["private page"] = str(folder / PRIVATE_PAGE)
    parts: list[Grid | str] = [
        headline(synthesis),
        *(f"Warning: {warning}" for warning in synthesis.warnings),
        Grid(rows=list(files.items()), title="Files"),
    ]
    record = SynthesisAnswer(
        run=str(folder), to=str(target), statement=synthesis, measures=measures
    )
    return Answer(table=parts, record=record)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(read_file(path)).hexdigest()
