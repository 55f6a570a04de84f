"""The tables of many runs as LaTeX, to be pasted into a paper: one for each split, one over keys.

They need the package booktabs. What stands in them comes from configurations and may hold any
letter, so every cell is escaped.
"""

from collections.abc import Sequence

from dpft.records.scores import PRIVATE_SPLIT
from dpft.reports.comparison.compare import Comparison
from dpft.reports.comparison.sweeps import EPS
from dpft.reports.comparison.tables import BOLD_NOTE, Cell, Split, bases, printed_epsilon

ESCAPES = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "×": r"$\times$",
        "→": r"$\to$",
        "–": "--",
    }
)


def latex(comparison: Comparison) -> str:
    """Returns the tables of a comparison, an environment ``table`` for each."""
    tables = []
    for split in comparison.splits:
        tables.append(_settings_table(comparison, split))
        for pivot in comparison.pivots(split):
            head = [pivot.row_key if pivot.column_key is None else "", *pivot.columns]
            rows = [
                [label, *map(_cell, cells)]
                for label, cells in zip(pivot.rows, pivot.cells, strict=True)
            ]
            tables.append(_table(f"{pivot.heading}{_where(split)}", head, rows, words=1))
    return "% needs \\usepackage{booktabs}\n" + "\n".join(tables)


def _settings_table(comparison: Comparison, split: Split) -> str:
    keys = [key for key in comparison.keys if key != EPS]
    found = bases(run for setting in comparison.settings for run in setting.runs)
    rows = [
        [
            *(setting.label(key) for key in keys),
            printed_epsilon(setting.runs, with_basis=len(found) > 1),
            str(len(setting.runs)),
            *(_cell(split.cells[metric].get(number)) for metric in split.metrics),
        ]
        for number, setting in enumerate(comparison.settings)
    ]
    several = any(len(setting.runs) > 1 for setting in comparison.settings)
    by = f" ε by {found.pop()}." if len(found) == 1 else ""
    caption = f"Scores after fine-tuning{_where(split)}{by}{f' {BOLD_NOTE}' if several else ''}"
    return _table(caption, [*keys, "ε", "runs", *split.metrics], rows, words=len(keys))


def _where(split: Split) -> str:
    private = "" if split.public else f", {PRIVATE_SPLIT}"
    return f" on {split.task}, split {split.name}{private}."


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, words: int
) -> str:
    """Returns a table.

    Args:
        caption: Below it.
        head: Of each column.
        rows: Cells; those of scores may be bold.
        words: How many columns, the first ones, stand to the left.
    """
    columns = "l" * words + "r" * (len(head) - words)
    lines = [" & ".join(map(_escaped, row)) + r" \\" for row in (head, *rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_escaped(caption)}}}",
            r"\end{table}",
            "",
        ]
    )


def _cell(cell: Cell | None) -> str | Cell:
    return "–" if cell is None else cell


def _escaped(text: str | Cell) -> str:
    escaped = " ".join(str(text).split()).translate(ESCAPES)
    return rf"\textbf{{{escaped}}}" if isinstance(text, Cell) and text.bold else escaped
