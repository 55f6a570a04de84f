"""Published heat maps beside the two-way tables of one's own runs over the same keys.

The maps are those of the runs' own configurations, ``reference_maps``. One stands beside a table
only where every run of the table is as the map's cells are but for the two keys, and is scored on
the map's split by its metric.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpft.reports.comparison.sweeps import Setting, ordered
from dpft.reports.comparison.tables import Cell, Pivot, Split
from dpft.reports.pages import printed
from dpft.reports.run.reference_map import MapAxis, ReferenceMap, saved_maps


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
    def printed_cells(self) -> list[list[str]]:
        """The published scores as they are printed."""
        return [["–" if one is None else f"{one:.3f}" for one in row] for row in self.cells]

    @property
    def printed_differences(self) -> list[list[str]]:
        """The differences as they are printed, each with its sign."""
        return [["–" if one is None else f"{one:+.3f}" for one in row] for row in self.differences]

    @property
    def compares(self) -> bool:
        """Whether a cell is in both."""
        return any(value is not None for row in self.differences for value in row)


def published_pivots(
    pivot: Pivot, split: Split, settings: Sequence[Setting]
) -> list[PublishedPivot]:
    """Returns the published maps that stand beside a two-way table; none where none fits.

    Args:
        pivot: The table.
        split: Whose scores it has.
        settings: All of them, as the table numbers them.
    """
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
        differences=_differences(one, pivot, settings),
    )


def _differences(
    one: ReferenceMap, pivot: Pivot, settings: Sequence[Setting]
) -> list[list[float | None]]:
    """Returns own mean less published score, for each cell of a table."""
    return [
        [_difference(one, cell, number, settings) for cell, number in zip(*row, strict=True)]
        for row in zip(pivot.cells, pivot.settings, strict=True)
    ]


def _difference(
    one: ReferenceMap, cell: Cell | None, number: int | None, settings: Sequence[Setting]
) -> float | None:
    if cell is None or number is None:
        return None
    published = one.score_of(settings[number].runs[0].values)
    return None if published is None else cell.mean - published


def _title(axis: MapAxis) -> str:
    return f"{axis.key} ({axis.values_are})" if axis.values_are else axis.key
