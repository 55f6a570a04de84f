"""Reports of many runs: tables in Markdown, HTML with plots, CSV, and LaTeX for a paper.

Scores of private splits are left out of what others may read, and marked in each of them where
they stand; none of them is covered by epsilon. A published heat map (``reference_maps``) stands
beside a two-way table only where every run of the table is as the map's cells are but for the two
keys, and is scored on the map's split by its metric. Plots are those of Li et al. 2022: Figures 2
and 8 (heat maps), 9 (lines), 1 and 5 (parameters) and 7 (scores before fine-tuning). LaTeX needs
the package booktabs, and every cell of it is escaped.

Figure 3, right, is final scores against the signal-to-noise ratio of the first updates. The ratios
are of the records, which no epsilon covers, so that page goes into a ``private/`` folder, and is
drawn only where it is asked for.
"""

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpft.errors import InputError
from dpft.files import (
    DIAGNOSTICS,
    PAGE,
    PRIVATE_METRICS,
    REPORT,
    SCHEMA_VERSION,
    SIGNAL_TO_NOISE,
    private_path,
    write_text,
)
from dpft.records.configuration import SIGNAL_STEPS
from dpft.records.promises import OpenRun, RunPrivacy
from dpft.records.scores import PRIVATE_SPLIT
from dpft.reports.comparison import (
    BOLD_NOTE,
    EPS,
    WORDS,
    Cell,
    Comparison,
    Pivot,
    Setting,
    Split,
    bases,
    number,
    ordered,
    parameters,
    printed_epsilon,
)
from dpft.reports.pages import (
    Point,
    extremes,
    heat_map,
    line_plot,
    printed,
    render_html,
    render_markdown,
    scatter_plot,
)
from dpft.reports.published import MapAxis, ReferenceMap, saved_maps
from dpft.reports.run_record import RunRecord

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
    found = bases(comparison.runs)
    rows = [
        [
            *(setting.label(key) for key in keys),
            printed_epsilon(setting.runs, with_basis=len(found) > 1),
            str(len(setting.runs)),
            *(_cell(split.cells[metric].get(number)) for metric in split.metrics),
        ]
        for number, setting in enumerate(comparison.settings)
    ]
    several = len(comparison.runs) > len(comparison.settings)
    by = f" ε by {found.pop()}." if len(found) == 1 else ""
    caption = f"Scores after fine-tuning{_where(split)}{by}{f' {BOLD_NOTE}' if several else ''}"
    return _table(caption, [*keys, "ε", "runs", *split.metrics], rows, words=len(keys))


def _where(split: Split) -> str:
    private = "" if split.public else f", {PRIVATE_SPLIT}"
    return f" on {split.task}, split {split.name}{private}."


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, words: int
) -> str:
    """Returns a table."""
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


@dataclass(frozen=True, kw_only=True)
class PublishedPivot:
    """A published map over the keys of a two-way table, rows and columns ordered as there."""

    name: str
    """Paper, figure, model and epsilon."""
    source: str
    """Paper and figure."""
    remarks: list[str]
    """Sentences on the axes whose values are not the paper's."""
    row_title: str
    column_title: str
    """Keys of the rows and of the columns, with whose the values are."""
    rows: list[str]
    columns: list[str]
    cells: list[list[float | None]]
    differences: list[list[float | None]]
    """Own mean less published score, for each cell of the own table; None where one is missing."""

    @property
    def compares(self) -> bool:
        """Whether a cell is in both."""
        return any(value is not None for row in self.differences for value in row)


def published_pivots(
    pivot: Pivot, split: Split, settings: Sequence[Setting]
) -> list[PublishedPivot]:
    """Returns the published maps that stand beside a two-way table; none where none fits."""
    found = {number for row in pivot.settings for number in row if number is not None}
    runs = [run for number in sorted(found) for run in settings[number].runs]
    maps: list[ReferenceMap] = []
    for run in runs:
        maps += [
            one for one in _turned(saved_maps(run.config.reference_maps), pivot) if one not in maps
        ]
    return [
        _beside(one, pivot, settings)
        for one in maps
        if (one.metric, one.task, one.split) == (pivot.metric, split.task, split.name)
        and all(one.fits(run.values) for run in runs)
    ]


def _turned(maps: Sequence[ReferenceMap], pivot: Pivot) -> Iterator[ReferenceMap]:
    """Yields the maps over the keys of a table, with their rows where the table has them."""
    for one in maps:
        keys = (one.rows.key, one.columns.key)
        if keys == (pivot.row_key, pivot.column_key):
            yield one
        elif keys == (pivot.column_key, pivot.row_key):
            yield one.transposed()


def _beside(one: ReferenceMap, pivot: Pivot, settings: Sequence[Setting]) -> PublishedPivot:
    rows, columns = ([printed(value) for value in axis.values] for axis in (one.rows, one.columns))
    found = {
        (row, column): cell
        for row, cells in zip(rows, one.cells, strict=True)
        for column, cell in zip(columns, cells, strict=True)
    }
    rows, columns = ordered(rows), ordered(columns)
    return PublishedPivot(
        name=one.name,
        source=one.source,
        remarks=[f"{remark[:1].upper()}{remark[1:]}." for remark in one.remarks],
        row_title=_title(one.rows),
        column_title=_title(one.columns),
        rows=rows,
        columns=columns,
        cells=[[found[row, column] for column in columns] for row in rows],
        differences=[
            [_difference(one, cell, number, settings) for cell, number in zip(*row, strict=True)]
            for row in zip(pivot.cells, pivot.settings, strict=True)
        ],
    )


def _difference(
    one: ReferenceMap, cell: Cell | None, number: int | None, settings: Sequence[Setting]
) -> float | None:
    if cell is None or number is None:
        return None
    published = one.score_of(settings[number].runs[0].values)
    return None if published is None else cell.mean - published


def _title(axis: MapAxis) -> str:
    return f"{axis.key} ({axis.values_are})" if axis.values_are else axis.key


DELTA = "privacy.delta"
LINES = (EPS, DELTA)
"""Keys along which lines are drawn."""
MODELS, METHODS = {"model.name", "model.path"}, {"method.name", "method.rank"}
"""Keys by which the number of parameters differs: of all of them, of those that train."""


def split_plots(comparison: Comparison, split: Split, name: str) -> list[Markup]:
    """Returns the plots of a split's scores, those for which the runs are made."""
    return [
        plot
        for place, metric in enumerate(comparison.shown(split))
        for plot in _plots(comparison, split, metric, f"{name}-{place}")
    ]


def _plots(comparison: Comparison, split: Split, metric: str, name: str) -> Iterator[Markup]:
    label = metric if split.public else f"{metric} (private split)"
    for place, pivot in enumerate(comparison.pivots(split)):
        if pivot.metric == metric and len(pivot.rows) > 1 and len(pivot.columns) > 1:
            published = published_pivots(pivot, split, comparison.settings)
            yield _heat_maps(pivot, published, label, f"{name}-map{place}")
    cells, settings, keys = split.cells[metric], comparison.settings, comparison.keys
    one = comparison.axes if comparison.axes and len(comparison.axes) == 1 else ()
    for key in dict.fromkeys([*one, *LINES]):
        series = _along(key, cells, settings, keys)
        if key in keys and series:
            others = ", ".join(other for other in keys if other != key)
            yield line_plot(series, name=f"{name}-{key}", metric=label, axis=key, title=others)
    sizes = _against_parameters(cells, settings, keys)
    if sizes:
        axis, series = sizes
        yield line_plot(series, name=f"{name}-size", metric=label, axis=axis, places="counts")
    series = _against_before(cells, split.before[metric], settings, keys)
    if series:
        axis = f"{metric} before fine-tuning"
        yield line_plot(series, name=f"{name}-before", metric=label, axis=axis, places="scores")


def _heat_maps(pivot: Pivot, published: Sequence[PublishedPivot], label: str, name: str) -> Markup:
    """Returns a two-way table as a heat map, and the published ones beside it in its colors."""
    own = [[None if cell is None else cell.mean for cell in row] for row in pivot.cells]
    scale = extremes(own, *(one.cells for one in published))
    drawn = heat_map(
        own,
        name=name,
        metric=f"{label}, {pivot.fixed}" if pivot.fixed else label,
        rows=(pivot.row_key, pivot.rows),
        columns=(pivot.column_key or pivot.metric, pivot.columns),
        scale=scale,
    )
    for place, one in enumerate(published):
        drawn += heat_map(
            one.cells,
            name=f"{name}-published{place}",
            metric=f"published {pivot.metric}, {one.source}",
            rows=(one.row_title, one.rows),
            columns=(one.column_title, one.columns),
            scale=scale,
        )
    if not published:
        return drawn
    names = ", then ".join(one.name for one in published)
    caption = (
        f"These runs, then {names}; their colors are of one scale, from {scale[0]:.4g} to"
        f" {scale[1]:.4g}."
    )
    return drawn + Markup("<figcaption>{}</figcaption>").format(caption)


def _along(
    key: str, cells: Mapping[int, Cell], settings: Sequence[Setting], keys: Sequence[str]
) -> dict[str, list[Point]]:
    """Returns the means along a key, a line for each combination of the other keys' values."""
    others = [other for other in keys if other != key]
    series: dict[str, list[Point]] = {}
    for index, cell in cells.items():
        place = number(settings[index].label(key))
        if place is not None:
            label = ", ".join(settings[index].label(other) for other in others)
            series.setdefault(label, []).append((place, cell.mean, cell.deviation or 0.0))
    return {
        label: sorted(points)
        for label, points in series.items()
        if any(len(each) > 1 for each in series.values())
    }


def _against_parameters(
    cells: Mapping[int, Cell], settings: Sequence[Setting], keys: Sequence[str]
) -> tuple[str, dict[str, list[Point]]] | None:
    """Returns the axis and its lines, one for each privacy level; None where sizes do not differ.

    Over models it is the size of the whole, over methods what is trained of it.
    """
    if not (MODELS | METHODS) & set(keys):
        return None
    axis = "total_parameters" if MODELS & set(keys) else "trainable_parameters"
    series: dict[str, list[Point]] = {}
    for index, cell in cells.items():
        size = float(getattr(settings[index].runs[0].privacy, axis))
        label = _level(settings[index]) if EPS in keys else ""
        series.setdefault(label, []).append((size, cell.mean, cell.deviation or 0.0))
    sizes = {place for points in series.values() for place, _, _ in points}
    if len(sizes) < 2:
        return None
    return axis.replace("_", " "), {label: sorted(points) for label, points in series.items()}


def _against_before(
    cells: Mapping[int, Cell],
    before: Mapping[int, float],
    settings: Sequence[Setting],
    keys: Sequence[str],
) -> dict[str, list[Point]]:
    """Returns a line for each privacy level where label words differ; none elsewhere.

    Scores before fine-tuning say how well the words fit the task (Li et al. 2022, Appendix E).
    """
    series: dict[str, list[Point]] = {}
    for index, cell in cells.items():
        if WORDS in keys and index in before:
            label = _level(settings[index]) if EPS in keys else ""
            point = (before[index], cell.mean, cell.deviation or 0.0)
            series.setdefault(label, []).append(point)
    return {label: sorted(points) for label, points in series.items()}


def _level(setting: Setting) -> str:
    return f"ε = {setting.level}" if number(setting.level) else setting.level


FILES = (REPORT, "table.csv", PAGE)


def markdown(comparison: Comparison) -> str:
    """Returns the tables as Markdown."""
    return render_markdown("comparison.md.j2", **_parts(comparison))


def page(comparison: Comparison) -> str:
    """Returns the tables and plots as HTML."""
    plots = [
        split_plots(comparison, split, f"split{number}")
        for number, split in enumerate(comparison.splits)
    ]
    return render_html("comparison.html.j2", plots=plots, **_parts(comparison))


def record(comparison: Comparison) -> dict[str, Any]:
    """Returns what ``dpft report runs=… output=json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "keys": comparison.keys,
        "runs": csv_rows(comparison),
        "costs": comparison.costs,
        "left_out": comparison.left_out,
    }


def csv_table(comparison: Comparison) -> str:
    """Returns a line for each run and split, every score unrounded."""
    rows = csv_rows(comparison)
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _spent(privacy: RunPrivacy) -> dict[str, Any]:
    """Returns what a run cost, by itself and with its tokenizer; empty words without privacy."""
    if isinstance(privacy, OpenRun):
        return {"epsilon": "", "delta": "", "accountant": ""}
    names = ("epsilon", "delta", "accountant", "epsilon_with_tokenizer", "delta_with_tokenizer")
    stated = {name: getattr(privacy, name) for name in names}
    return {name: value for name, value in stated.items() if value is not None}


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns what the table of single runs holds."""
    return [
        {
            "run": str(run.folder),
            **{key: setting.label(key) for key in comparison.keys},
            "seed": "" if run.config.train.seed is None else run.config.train.seed,
            **_spent(run.privacy),
            "private": run.privacy.private,
            "trainable_parameters": run.privacy.trainable_parameters,
            "total_parameters": run.privacy.total_parameters,
            "task": entry.task,
            "split": entry.split,
            "split_is_public": entry.split_is_public,
            "note": entry.note or "",
            **entry.metrics,
        }
        for setting, run in _runs(comparison)
        for entry in run.after()
    ]


def write_comparison(comparison: Comparison, folder: Path, *, mode: int = 0o644) -> None:
    """Writes report.md, table.csv and report.html into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = (markdown(comparison), csv_table(comparison), page(comparison))
    for name, text in zip(FILES, texts, strict=True):
        write_text(folder / name, text, mode=mode)


NO_SCORES = (
    "None of these runs has a score that may be shown; ε is the largest of runs that differ in"
    " seeds alone. dpft eval run=DIR scores one on its task's test inputs."
)


def _parts(comparison: Comparison) -> dict[str, Any]:
    settings, runs = comparison.settings, comparison.runs
    apart = len(bases(runs)) > 1
    return {
        "title": ", ".join(
            f"{len(them)} {what}{'s' * (len(them) != 1)}"
            for them, what in ((runs, "run"), (settings, "setting"))
        ),
        "keys": comparison.keys,
        "columns": [key for key in comparison.keys if key != EPS],
        "settings": settings,
        "epsilons": [printed_epsilon(setting.runs, with_basis=apart) for setting in settings],
        "parameters": [parameters(setting.runs[0]) for setting in settings],
        "splits": comparison.splits,
        "pivots": [
            [
                (pivot, published_pivots(pivot, split, settings))
                for pivot in comparison.pivots(split)
            ]
            for split in comparison.splits
        ],
        "costs": comparison.costs,
        "left_out": comparison.left_out,
        "hidden": sorted(
            {
                f"{entry.task}, split {entry.split}"
                for run in runs
                for entry in run.after()
                if entry.is_private and not entry.metrics
            }
        ),
        "private_metrics": PRIVATE_METRICS,
        "bold_note": BOLD_NOTE if len(runs) > len(settings) else "",
        "private_split": PRIVATE_SPLIT,
        "no_scores": NO_SCORES,
    }


AXIS = f"mean signal-to-noise ratio of the first {SIGNAL_STEPS} updates"
OWNERS = "it reads the records, no epsilon covers it, and it stays with the owner of the data"
"""What is said of the page wherever it is named."""
Ratios = Mapping[Path, list[float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The final scores by one metric on one split."""

    heading: str
    scores: dict[Path, float]
    """By the run's folder; a run that was not scored so is not there."""
    plot: Markup


def write_signal_to_noise(comparison: Comparison, ratios: Ratios, folder: Path) -> Path:
    """Writes a table, and a plot for each metric, into the folder's ``private/``.

    Returns:
        The page, mode 0600.
    """
    missing = [str(folder) for folder, of_run in ratios.items() if not of_run]
    if missing:
        raise InputError(
            f"signal_to_noise=true needs runs whose {DIAGNOSTICS} has the signal and the noise of"
            f" their first {SIGNAL_STEPS} updates, got {', '.join(missing)} without; a run has none"
            " that was not private, was trained before dpft measured it, or was handed on without"
            " its private folder: leave it out."
        )
    panels = [
        _panel(comparison, split, metric, ratios, name=f"signal{number}-{place}")
        for number, split in enumerate(comparison.splits)
        for place, metric in enumerate(comparison.shown(split))
    ]
    page = render_html(
        "signal_to_noise.html.j2",
        title="Final scores against signal to noise",
        owners=OWNERS,
        keys=comparison.keys,
        runs=_runs(comparison),
        ratios=ratios,
        means={run: statistics.fmean(of_run) for run, of_run in ratios.items()},
        panels=panels,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = private_path(folder, SIGNAL_TO_NOISE)
    write_text(path, page, mode=0o600)
    return path


def _runs(comparison: Comparison) -> list[tuple[Setting, RunRecord]]:
    return [(setting, run) for setting in comparison.settings for run in setting.runs]


def _panel(
    comparison: Comparison, split: Split, metric: str, ratios: Ratios, *, name: str
) -> Panel:
    scores: dict[Path, float] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for setting, run in _runs(comparison):
        score = _score(run, split, metric)
        if score is not None:
            scores[run.folder] = score
            label = ", ".join(setting.label(key) for key in comparison.keys)
            point = (statistics.fmean(ratios[run.folder]), score)
            series.setdefault(label, []).append(point)
    keys = ", ".join(comparison.keys)
    where = f"{split.task}, {split.name}" if split.public else f"{split.task}, private {split.name}"
    return Panel(
        heading=f"{metric} on {where}",
        scores=scores,
        plot=scatter_plot(series, name=name, metric=metric, axis=AXIS, title=keys),
    )


def _score(run: RunRecord, split: Split, metric: str) -> float | None:
    """Returns a run's score after training on a split; None where it has none."""
    of_split = (one for one in run.after() if (one.task, one.split) == (split.task, split.name))
    return next((entry.metrics.get(metric) for entry in of_split), None)
