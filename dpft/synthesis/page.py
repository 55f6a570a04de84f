"""The pages of a synthesis, for the public and for the owner, and ten lines for the terminal.

The public page is made of the statement alone. The private one sets synthetic rows beside real
ones, and says beside each figure what it should be near.
"""

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpft import __version__
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.synthesis import (
    Associations,
    Marginal,
    Measures,
    Synthesis,
    TextLikeness,
    Usefulness,
)
from dpft.reports.pages import COLORS, draw_svg, render_html
from dpft.reports.terminal import Grid

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
            title="In short",
            columns=("", "synthetic", "should be near"),
            rows=short_rows(measures),
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
