"""The private histogram: the noisy number of rows for each combination of public values.

A cell is one value for each column of the condition, including missing values. Only the schema
decides which cells exist. Each cell gets Gaussian noise, whether it contains records or not. A unit
adds at most 1 to the counts in L2 norm, because the shares of its records always sum to 1.

The noisy counts are projected onto the nearest non-negative counts with the same sum (Duchi et al.
2008, Figure 1). If negative counts were only set to zero, empty cells would get too large a share.
The projection is post-processing.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpft.errors import InputError
from dpft.privacy.mechanisms.histogram import GaussianCounts, noise_std_for_counts
from dpft.synthesis.schema import Column, Schema, Value

MOST_CELLS = 100_000
RESOLUTION = 2.0**-20
"""A unit's shares are rounded down to multiples of this number, so that their sums are exact."""
Cell = tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The cells of a histogram, which are all public."""

    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, schema: Schema, names: Sequence[str]) -> "Condition":
        """Return the cells that a schema allows, in the order of the schema.

        Raises:
            InputError: A column is not categorical or is named twice, or there are no cells or too
                many.
        """
        if len(set(names)) < len(names):
            raise InputError(
                f"condition must name each column once, got {list(names)}.",
                key="condition",
                value=list(names),
            )
        for name in names:
            if name not in schema.named or not schema.named[name].options:
                allowed = [column.name for column in schema.learned if column.options]
                raise InputError(
                    f"condition must name columns of type category or boolean, got {name!r}."
                    f" Such columns of the schema: {', '.join(allowed) or 'none'}.",
                    key="condition",
                    value=name,
                )
        columns = tuple(schema.named[name] for name in names)
        size = math.prod(len(column.options) for column in columns)
        if size > MOST_CELLS:
            raise InputError(
                f"condition may make at most {MOST_CELLS} cells, got {size}. Remove a column, which"
                " the model then learns.",
                key="condition",
                value=size,
            )
        impossible = [cells for cells in schema.impossible if set(cells) <= set(names)]
        rows = (
            dict(zip(names, cell, strict=True))
            for cell in itertools.product(*(column.options for column in columns))
        )
        cells = tuple(
            tuple(row.values())
            for row in rows
            if not any(cells.items() <= row.items() for cells in impossible)
        )
        if not cells:
            raise InputError(
                "condition has no possible cell, because the schema's list `impossible` excludes"
                " all of them. Remove values from the list.",
                key="condition",
                value=list(names),
            )
        return cls(columns=columns, cells=cells)

    @cached_property
    def _places(self) -> dict[Cell, int]:
        return {cell: at for at, cell in enumerate(self.cells)}

    def place(self, row: Mapping[str, Value]) -> int:
        """Return the index of the cell of a row."""
        return self._places[tuple(row[column.name] for column in self.columns)]

    def row(self, at: int) -> dict[str, Value]:
        """Return the values of the condition's columns in the cell with index ``at``."""
        return {c.name: value for c, value in zip(self.columns, self.cells[at], strict=True)}

    def plan(self, *, eps: float, share: float, delta: float, num_examples: int) -> GaussianCounts:
        """Return the noise with which the histogram by itself spends ``share`` of epsilon at delta.

        Raises:
            InputError: The mean count of a cell is less than the standard deviation of the noise.
        """
        noise = noise_std_for_counts(eps=share * eps, l2_cap=1.0, delta=delta)
        mean = num_examples / len(self.cells)
        if mean < noise:
            raise InputError(
                f"condition makes {len(self.cells)} cells of {num_examples} examples, {mean:.3g}"
                f" each, which is less than the noise of {noise:.3g}. Name fewer columns, or raise"
                " privacy.share or privacy.eps.",
                key="condition",
            )
        return GaussianCounts(noise_std=noise, l2_cap=1.0, cells=len(self.cells), delta=delta)

    def count(self, rows: Iterable[tuple[str, int]]) -> NDArray[np.float64]:
        """Return the exact counts, which are private; a unit adds at most 1 in L2 norm.

        Args:
            rows: The unit and the cell index of each row.

        Returns:
            Multiples of ``RESOLUTION``, shape (cells,).
        """
        of_units: dict[str, Counter[int]] = {}
        for unit, place in rows:
            of_units.setdefault(unit, Counter())[place] += 1
        sums = np.zeros(len(self.cells), np.int64)
        for counts in of_units.values():
            for place, number in counts.items():
                sums[place] += math.floor(number / counts.total() / RESOLUTION)
        return sums.astype(np.float64) * RESOLUTION


def cell_shares(noisy: Sequence[float]) -> NDArray[np.float64]:
    """Return the share of each cell by projecting the noisy counts.

    >>> cell_shares([6.0, 2.0, -1.0]).round(3).tolist()
    [0.786, 0.214, 0.0]
    >>> cell_shares([-1.0, -3.0]).tolist()
    [0.5, 0.5]
    """
    counts = np.asarray(noisy, np.float64)
    total = float(counts.sum())
    if total <= 0:
        return np.full(len(counts), 1 / len(counts))
    ordered = np.sort(counts)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    last = int(np.flatnonzero(ordered > excess)[-1])
    projected: Any = np.maximum(counts - excess[last], 0)
    result: NDArray[np.float64] = projected / projected.sum()
    return result


def rows_per_cell(of_cells: NDArray[np.float64], num: int) -> list[int]:
    """Return the number of rows of each cell, ``num`` in total; round up the largest remainders.

    >>> rows_per_cell(cell_shares([3.0, 2.0, 2.0]), 5)
    [2, 2, 1]
    """
    exact = of_cells * num
    rows = np.floor(exact).astype(int)
    order = np.argsort(-(exact - rows), kind="stable")
    rows[order[: num - int(rows.sum())]] += 1
    return [int(number) for number in rows]
