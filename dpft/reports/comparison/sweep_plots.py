"""The plots of a sweep: scores over two keys, over ε or δ, against parameters or earlier scores.

They are those of Li et al. 2022: Figures 2 and 8 (heat maps), 9 (lines), 1 and 5 (parameters) and
7 (scores before fine-tuning).
"""

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from dpft.reports.comparison.compare import Comparison
from dpft.reports.comparison.published import PublishedPivot, published_pivots
from dpft.reports.comparison.sweeps import EPS, WORDS, Setting, number
from dpft.reports.comparison.tables import Cell, Pivot, Split
from dpft.reports.plots import Point, extremes, heat_map, line_plot

DELTA = "privacy.delta"
LINES = (EPS, DELTA)
"""Keys along which lines are drawn."""
MODELS, METHODS = {"model.name", "model.path"}, {"method.name", "method.rank"}
"""Keys by which the number of parameters differs: of all of them, of those that train."""


def split_plots(comparison: Comparison, split: Split, name: str) -> list[Markup]:
    """Returns the plots of a split's scores, those for which the runs are made.

    Args:
        comparison: All runs.
        split: Whose scores.
        name: Tells the figures from those of other splits.
    """
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
