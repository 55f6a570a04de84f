"""What a synthesis leaves: the table, its public statement, and the private page for its owner.

The statement says what read the records, from their ledgers alone, and describes the synthetic rows
by themselves. Whatever compares them with real rows is private. The private page
sets synthetic rows beside real ones, and says beside each figure what it should be near.
"""

import datetime
import hashlib
import math
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpft import __version__
from dpft.data.raw_rows import write_rows
from dpft.errors import StateError
from dpft.evaluation.predictions import spread
from dpft.files import LEDGER, PAGE, PRIVATE_PAGE, TRAINING, private_path, read_file, write_text
from dpft.privacy.accounting import evaluate
from dpft.privacy.accounting.mechanism import Composition
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.ledger import Noise, as_mechanisms, read_ledger
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import NEIGHBORING_RELATION, PrivacyPlan
from dpft.records import synthesis as records
from dpft.records.form import read_record, write_record
from dpft.records.ledger import LedgerHead
from dpft.records.synthesis import (
    Associations,
    Marginal,
    Measures,
    Synthesis,
    TextLikeness,
    Usefulness,
)
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.pages import COLORS, draw_svg, render_html
from dpft.reports.terminal import Grid
from dpft.runs.composition import with_its_tokenizer
from dpft.runs.saved_run import SpentRun, read_spent, read_spent_of_synthesis
from dpft.synthesis.columns import Identity
from dpft.synthesis.generator import Drawn, generator_features
from dpft.synthesis.measures import Tables, marginal, measured
from dpft.synthesis.plan import (
    ACCOUNTANT,
    SCHEMA_FILE,
    Budget,
    PublicPart,
    delta_source,
    unit_definition,
)
from dpft.synthesis.schema import Row, Schema
from dpft.synthesis.table import PrivateTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TEMPLATE = "synthesis.html.j2"
OWNERS = "for the owner of the data alone: it is made of private rows"
NOT_PRIVATE = "**NOT PRIVATE**: histogram and training had no noise (`privacy=none`)."


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of a page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    in_words: bool = False
    """Whether its cells are words, which wrap, and no numbers."""


def headline(said: Synthesis) -> str:
    """Returns what the synthesis promises, in a sentence."""
    if said.epsilon is None or said.delta is None:
        return NOT_PRIVATE
    marked = "" if said.private else " **Reproducible: not private.**"
    return (
        f"The synthetic rows and the model are **(ε = {eps_text(said.epsilon)}, δ ="
        f" {delta_text(said.delta)})-differentially private**, histogram and training together, by"
        f" {said.accountant}. The unit is {said.unit_definition}; there are {said.num_examples},"
        f" which is taken as public.{marked}"
    )


def public_page(said: Synthesis, schema: str) -> str:
    """Returns the page that may be released with the synthetic rows."""
    tone = "good" if said.private and said.epsilon is not None else "bad"
    rejected = ", ".join(f"{n} broke the {rule}" for rule, n in said.rejected.items()) or "none"
    facts = [
        ("rows", str(said.rows)),
        ("texts that were no rows, drawn anew", str(said.unparsed)),
        ("rows that broke a rule, drawn anew", rejected),
        ("rows given up", str(said.left_out)),
        ("condition", ", ".join(said.condition) or "none"),
        ("generator", f"{said.model}, fine-tuned by {said.method}"),
        ("unit", said.unit_definition),
        ("number of units, taken as public", f"{said.num_examples} ({said.num_examples_source})"),
        ("neighboring relation", said.neighboring_relation),
        ("noise", said.noise_source),
        ("SHA-256 of the rows", said.rows_sha256),
        ("SHA-256 of the schema", said.schema_sha256),
    ]
    parts = [
        (
            part.name,
            eps_text(part.epsilon),
            f"{part.noise_multiplier:.4g}",
            str(part.steps),
            part.ledger.head,
        )
        for part in said.parts
    ]
    tables = [PageTable(title="What was made", columns=("", ""), rows=facts, in_words=True)]
    if parts:
        note = (
            "Nothing else read a record. Each part's ε is its own, at the δ of the whole; together"
            " they are composed, not added. `dpft account run=FOLDER` computes the same from the"
            " training's ledger alone, whose first line has the histogram's."
        )
        columns = ("part", "ε alone", "noise multiplier", "noisy steps", "head of its ledger")
        tables.insert(0, PageTable(title="What ε is of", columns=columns, rows=parts, note=note))
    tables += [
        PageTable(
            title=f"Synthetic {column.name}",
            columns=("", "rows"),
            rows=[
                (name, str(n)) for name, n in [*column.counts.items(), ("missing", column.missing)]
            ],
        )
        for column in said.columns
    ]
    return render_html(
        TEMPLATE,
        title="A synthetic table",
        owners="",
        headline=[headline(said), *said.warnings],
        tone=tone,
        tables=tables,
        figures=[],
        schema=schema,
        version=__version__,
    )


def private_page(said: Synthesis, measures: Measures, faults: Mapping[str, int]) -> str:
    """Returns the page for the owner alone."""
    figures: list[tuple[str, Markup]] = []
    if measures.associations is not None:
        figures.append(("Pairs of columns", _heat_maps(measures.associations)))
    figures += [(f"Real and synthetic {each.name}", _bars(each)) for each in measures.marginals]
    tables = [
        PageTable(
            title="In short", columns=("", "synthetic", "should be near"), rows=short_rows(measures)
        ),
        PageTable(
            title="Columns",
            columns=("total variation from the training rows", "synthetic", "controls"),
            rows=[
                (each.name, f"{each.total_variation:.3f}", f"{each.of_controls:.3f}")
                for each in measures.marginals
            ],
        ),
    ]
    tables += _text_tables(measures)
    if faults:
        rows = [(fault, str(number)) for fault, number in faults.items()]
        title = "Rows that were not as the schema says"
        tables.append(PageTable(title=title, columns=("", "rows"), rows=rows))
    return render_html(
        TEMPLATE,
        title="Synthetic rows against real ones",
        owners=OWNERS,
        headline=[headline(said)],
        tone="good" if said.private and said.epsilon is not None else "bad",
        tables=tables,
        figures=figures,
        schema="",
        version=__version__,
    )


def _text_tables(measures: Measures) -> list[PageTable]:
    """Returns what texts have in common with real ones: n-grams, copies and runs, personal data."""
    tables = [
        PageTable(
            title=f"Texts of {each.name}",
            columns=("", "synthetic", "should be near"),
            rows=_likeness_rows(each),
            note=each.why_not or "",
        )
        for each in measures.texts
    ]
    found = measures.leakage.texts
    if found.unseen is not None:
        rows = [
            (name, f"{getattr(found.training, key):.2f}", f"{getattr(found.unseen, key):.2f}")
            for name, key in (
                ("a synthetic text, %", "exact_percent"),
                ("near a synthetic text, %", "near_duplicate_percent"),
                ("words in a row in one: median", "longest_run_median"),
                ("95 of 100 have at most", "longest_run_95_percent"),
                ("most", "longest_run_most"),
            )
        ]
        columns = ("real rows that are", "training rows", "controls")
        tables.append(PageTable(title="Copies and long runs", columns=columns, rows=rows))
    personal = measures.personal
    if personal is not None and personal.kinds:
        kinds_columns = ("different ones", "real rows", "synthetic rows", "in both")
        rows_of_kinds = [
            (kind, str(n.real), str(n.synthetic), str(n.synthetic_that_are_real))
            for kind, n in personal.kinds.items()
        ]
        note = f"Found by {personal.by}."
        title = "Personal data"
        tables.append(PageTable(title=title, columns=kinds_columns, rows=rows_of_kinds, note=note))
    return tables


def _likeness_rows(text: TextLikeness) -> list[tuple[str, str, str]]:
    """Returns how far the texts of a column are from real ones."""
    rows = [
        (
            f"{n} word{'s' * (n != '1')}: Jensen-Shannon divergence, bits",
            f"{value:.3f}",
            f"{(text.of_controls or {})[n]:.3f} (controls)",
        )
        for n, value in (text.divergence or {}).items()
    ]
    if text.told_apart is not None:
        rows.append(
            ("told from real ones by a classifier", f"{text.told_apart:.2f}", "0.50 (a coin)")
        )
    if text.mauve is not None:
        of_training = f"{text.mauve_of_training:.2f} (training rows)"
        rows.append(("MAUVE by the generator's features", f"{text.mauve:.2f}", of_training))
    return rows


def short_rows(measures: Measures) -> list[tuple[str, str, str]]:
    """Returns the figures in short: what, of the synthetic rows, and what it should be near.

    At most nine, of however many columns: of columns and of texts the worst one. Each fits a line
    of 80 letters.
    """
    largest = max(measures.marginals, key=lambda each: each.total_variation - each.of_controls)
    mean = sum(each.total_variation for each in measures.marginals) / len(measures.marginals)
    near = sum(each.of_controls for each in measures.marginals) / len(measures.marginals)
    rows = [
        ("marginals, mean total variation", f"{mean:.2f}", f"{near:.2f} (controls)"),
        (
            f"worst column, {_clipped(largest.name)}",
            f"{largest.total_variation:.2f}",
            f"{largest.of_controls:.2f} (controls)",
        ),
    ]
    pairs = measures.associations
    if pairs is not None:
        what = "pairs, mean difference of Cramér's V"
        near_them = f"{pairs.of_controls:.2f} (controls)"
        rows.append((what, f"{pairs.mean_difference:.2f}", near_them))
    use = measures.usefulness
    if isinstance(use, Usefulness):
        label = _clipped(use.label)
        real, synthetic, kind = max(
            (use.logistic_real, use.logistic_synthetic, "regression"),
            (use.boosting_real, use.boosting_synthetic, "trees"),
        )
        real_rows = f"{real:.2f} (commonest {use.commonest:.2f})"
        rows.append((f"{label} by {kind} taught on them", f"{synthetic:.2f}", real_rows))
        of_controls = f"{use.guessed_of_controls:.2f} (controls)"
        guessed = f"{use.guessed_of_training:.2f}"
        rows.append((f"training rows' {label} guessed", guessed, of_controls))
    told = [each for each in measures.texts if each.told_apart is not None]
    if told:
        worst = max(told, key=lambda each: each.told_apart or 0.0)
        what = f"{_clipped(worst.name)}: told from real ones"
        rows.append((what, f"{worst.told_apart:.2f}", "0.50 (a coin)"))
    leak = measures.leakage
    whole = f"{100 * leak.whole_rows_of_training:.2f} %"
    of_controls = f"{100 * leak.whole_rows_of_controls:.2f} % (controls)"
    rows.append(("training rows found whole", whole, of_controls))
    if leak.texts.longest_run_auc is not None:
        auc = f"{leak.texts.longest_run_auc:.2f}"
        rows.append(("training rows' runs above controls'", auc, "0.50"))
    personal = measures.personal
    if personal is not None:
        kinds = personal.kinds.values()
        real_ones = sum(kind.synthetic_that_are_real for kind in kinds)
        of_all = f"{real_ones} of {sum(kind.synthetic for kind in kinds)}"
        rows.append(("real personal data in synthetic texts", of_all, "0"))
    return rows


NAME = 16
"""Letters of a column's name in the table of the terminal."""


def _clipped(name: str) -> str:
    """Returns a column's name as it has room in a line, whatever it holds."""
    from rich.text import Text

    shown = Text(" ".join(name.split()))
    shown.truncate(NAME, overflow="ellipsis")
    return shown.plain


def terminal(
    said: Synthesis, measures: Measures | None, files: Mapping[str, str]
) -> list[Grid | str]:
    """Returns what the command shows."""
    parts: list[Grid | str] = [headline(said), *(f"Warning: {each}" for each in said.warnings)]
    if measures is not None:
        columns = ("", "synthetic", "should be near")
        title = "Against real rows (for you alone)"
        parts.append(Grid(rows=short_rows(measures), columns=columns, title=title))
    parts.append(Grid(rows=list(files.items()), title="Files"))
    return parts


def _place_of_bin(name: str) -> tuple[bool, float, str]:
    """Returns what bins are sorted by: numbers by their size, other names, then empty cells."""
    number = re.fullmatch(r"(?:from )?(-?\d+(?:\.\d+)?)(?: to \d+ words| words and more)?", name)
    return name == "", float(number[1]) if number else math.inf, name


def _bars(each: Marginal) -> Markup:
    """Returns the shares of a column's bins, real and synthetic."""
    names = sorted({*each.real, *each.synthetic}, key=_place_of_bin)[:40]
    shares = [
        [side.get(name, 0) / max(1, sum(side.values())) for name in names]
        for side in (each.real, each.synthetic)
    ]

    def draw(axes: "Axes") -> None:
        for number, (label, side) in enumerate(zip(("real", "synthetic"), shares, strict=True)):
            places = [at + 0.4 * (number - 0.5) for at in range(len(names))]
            axes.bar(places, side, 0.38, label=label, color=COLORS[number])
        shown = [(name or "missing")[:18] for name in names]
        axes.set_xticks(range(len(names)), shown, rotation=90 if len(names) > 6 else 0)
        axes.set(ylabel="share of rows")
        axes.grid(False, axis="x")
        axes.margins(y=0.2)  # room for the legend above the bars
        axes.legend(frameon=False, ncols=2, loc="upper right")

    return draw_svg(draw, name=f"column-{zlib.crc32(each.name.encode())}", label=each.name)


def _heat_maps(pairs: Associations) -> Markup:
    """Returns Cramér's V of real rows below the diagonal, of synthetic ones above it."""
    size = len(pairs.names)
    values = [
        [pairs.real[a][b] if a >= b else pairs.synthetic[a][b] for b in range(size)]
        for a in range(size)
    ]

    def draw(axes: "Axes") -> None:
        axes.imshow(values, vmin=0, vmax=1, cmap="Blues")
        axes.set_xticks(range(size), pairs.names, rotation=90)
        axes.set_yticks(range(size), pairs.names)
        axes.grid(False)
        if size <= 12:
            for a in range(size):
                for b in range(size):
                    color = "white" if values[a][b] > 0.6 else "black"
                    axes.text(
                        b,
                        a,
                        f"{values[a][b]:.2f}",
                        ha="center",
                        va="center",
                        color=color,
                        fontsize=8,
                    )
        axes.set(title="real below the diagonal, synthetic above")

    label = "associations of pairs of columns, heat map"
    return draw_svg(draw, name="pairs", label=label, height=5.0)


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
    return said.rows_sha256 == digest(target)


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
        schema_sha256=digest(folder / SCHEMA_FILE),
        condition=config.condition,
        model=config.model.name,
        method=config.method.name,
        rows=len(drawn.rows),
        rows_sha256=digest(target),
        unparsed=drawn.unparsed,
        rejected=drawn.rejected,
        left_out=drawn.left_out,
        columns=described(part.schema, drawn.rows),
    )
    if guarantee is None or budget.delta is None or guarantee.eps is None:
        return said
    training = spent[-1][1]
    whole = _epsilon(training.whole, budget.delta)
    alone = [_epsilon(run.taken, budget.delta) for _, run in spent]
    warnings = delta_warnings(budget.delta, budget.num_examples, source=delta_source(part))
    if training.plan.tokenizer is not None:
        warnings.append(with_its_tokenizer(training, budget.delta))
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


def _epsilon(taken: Mapping[Noise, int], delta: float) -> float:
    parts = as_mechanisms(taken, delta)
    found = evaluate(ACCOUNTANT, Composition(parts=parts)).upper
    assert found is not None
    return found


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(read_file(path)).hexdigest()
