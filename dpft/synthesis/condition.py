"""Which kinds of rows there are, and how many of each: a private histogram of public cells.

A cell is one value of each of the condition's columns, empty ones among them, by the schema: the
records decide neither which cells there are nor which are shown. Each gets Gaussian noise. A unit
adds at most 1 to all of them together, in L2 norm: a record 1 to its cell; a unit of several
records what each cell has of them, so that its cells sum to 1 however many records it has. So the
shares are those of units. What a schema calls impossible is no cell.

Afterwards the noisy counts are moved to the nearest ones that are not negative and sum to what they
summed to (Duchi et al. 2008, Figure 1): noise below zero is not just cut off, which would hand
empty cells a share. That, and how many rows each cell gets, is post-processing.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.privacy.mechanisms.histogram import GaussianCounts, noise_for_counts
from dpft.synthesis.columns import Category, Flag, Value
from dpft.synthesis.schema import Schema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_COLUMNS, MOST_CELLS = 4, 100_000
RESOLUTION = 2.0**-20
"""What shares of a unit are rounded down to, so that sums of them are exact."""
Cell = tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """The cells of a histogram; all of it is public."""

    columns: tuple[Category | Flag, ...]
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, schema: Schema, names: Sequence[str]) -> "Condition":
        """Returns the cells that a schema allows, in its order.

        Raises:
            InputError: A column is not there, stands twice or is no category, or there are too
                many columns or cells.
        """
        columns: list[Category | Flag] = []
        if len(set(names)) < len(names):
            raise InputError(f"condition must name each column once, got {list(names)}.")
        for name in names:
            column = schema.named.get(name)
            if not isinstance(column, Category | Flag):
                allowed = [c.name for c in schema.learned if c.is_categorical]
                raise InputError(
                    f"condition must name columns of type category or boolean, got {name!r};"
                    f" choose of {', '.join(allowed) or 'none, for the schema has none'}."
                )
            columns.append(column)
        if len(columns) > MOST_COLUMNS:
            raise InputError(
                f"condition may name at most {MOST_COLUMNS} columns, got {len(columns)}: each cell"
                " of a larger histogram would be noise."
            )
        size = math.prod(len(column.options) for column in columns)
        if size > MOST_CELLS:
            sizes = ", ".join(f"{c.name} has {len(c.options)}" for c in columns)
            raise InputError(
                f"condition may make at most {MOST_CELLS} cells, got {size} ({sizes}); drop a"
                " column, and the model learns it."
            )
        impossible = [cells for cells in schema.impossible if all(name in names for name in cells)]
        every = itertools.product(*(column.options for column in columns))
        cells = tuple(cell for cell in every if not _is_among(cell, names, impossible))
        if not cells:
            raise InputError("condition has no cell that the schema's impossible leaves; mend it.")
        return cls(columns=tuple(columns), cells=cells)

    @cached_property
    def places(self) -> dict[Cell, int]:
        """Each cell's place among them."""
        return {_key(cell): at for at, cell in enumerate(self.cells)}

    def place(self, row: Mapping[str, Value]) -> int:
        """Returns the place of the cell that a row is in."""
        return self.places[_key([row[column.name] for column in self.columns])]

    def row(self, at: int) -> dict[str, Value]:
        """Returns what the condition's columns hold in a cell."""
        return {c.name: value for c, value in zip(self.columns, self.cells[at], strict=True)}

    def check_worth(self, counts: GaussianCounts, num_examples: int) -> None:
        """Refuses a histogram whose cells would be noise, by public numbers alone.

        Raises:
            InputError: Spread evenly, a cell would have less than the noise's standard deviation.
        """
        mean = num_examples / len(self.cells)
        if mean < counts.noise_std:
            raise InputError(
                f"condition makes {len(self.cells)} cells of {num_examples} examples, {mean:.3g}"
                f" each, under noise of {counts.noise_std:.3g}: they would be all noise; name fewer"
                " columns, or raise privacy.share or privacy.eps."
            )

    def count(self, rows: Iterable[tuple[str, int]]) -> "NDArray[np.float64]":
        """Returns the exact counts, which are private; each unit adds at most 1 in L2 norm.

        Args:
            rows: Of each row its unit, and the place of its cell.

        Returns:
            Shape (cells,), whole multiples of ``RESOLUTION``: their sums are exact.
        """
        import numpy as np

        of_units: dict[str, Counter[int]] = {}
        for unit, place in rows:
            of_units.setdefault(unit, Counter())[place] += 1
        sums = np.zeros(len(self.cells), np.int64)
        for own in of_units.values():
            total = sum(own.values())
            for place, number in own.items():
                sums[place] += math.floor(number / total / RESOLUTION)
        return sums.astype(np.float64) * RESOLUTION


def _is_among(cell: Cell, names: Sequence[str], found: Sequence[Mapping[str, Value]]) -> bool:
    row = dict(zip(names, cell, strict=True))
    return any(all(row[name] == value for name, value in cells.items()) for cells in found)


def _key(cell: Sequence[Value]) -> Cell:
    """Returns a cell with its types: 1 and True are different values."""
    return tuple((type(value).__name__, value) for value in cell)  # type: ignore[misc]


def plan_counts(condition: Condition, *, eps: float, share: float, delta: float) -> GaussianCounts:
    """Returns the noise under which the histogram alone spends ``share`` of epsilon at delta."""
    return GaussianCounts(
        noise_std=noise_for_counts(eps=share * eps, l2_cap=1.0, delta=delta),
        l2_cap=1.0,
        cells=len(condition.cells),
        delta=delta,
    )


def shares(noisy: Sequence[float]) -> "NDArray[np.float64]":
    """Returns the share of each cell: of noisy counts the nearest ones that can be.

    >>> shares([6.0, 2.0, -1.0]).round(3).tolist()
    [0.786, 0.214, 0.0]
    >>> shares([-1.0, -3.0]).tolist()  # nothing was seen: all alike
    [0.5, 0.5]

    Args:
        noisy: Noisy counts, at least one.
    """
    import numpy as np

    counts = np.asarray(noisy, np.float64)
    total = float(counts.sum())
    if total <= 0:
        return np.full(len(counts), 1 / len(counts))
    ordered = np.sort(counts)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1])
    found: Any = np.maximum(counts - excess[kept], 0)
    result: NDArray[np.float64] = found / found.sum()
    return result


def allotted(of_cells: "NDArray[np.float64]", num: int) -> list[int]:
    """Returns how many of ``num`` rows each cell gets: the largest remainders are rounded up.

    >>> allotted(shares([3.0, 2.0, 2.0]), 5)
    [2, 2, 1]
    """
    import numpy as np

    exact = of_cells * num
    rows = np.floor(exact).astype(int)
    left = num - int(rows.sum())
    order = np.argsort(-(exact - rows), kind="stable")
    rows[order[:left]] += 1
    return [int(number) for number in rows]
