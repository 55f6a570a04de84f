"""Rows that a program hands over instead of a file: ``dpft.train(rows=...)``, task.source=memory.

They take the place of a local file in everything: nothing of them counts as published, messages
name a row by its number and never quote it, and a run's fingerprint, its held-out records and its
privacy units are computed from them as from a file's rows. They are held for the time of one call
and never written down, so that a run that goes on must be given them again.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from dpft.data.readers import Row
from dpft.errors import InputError, note_records_read
from dpft.tasks.base import SPLITS

if TYPE_CHECKING:
    import datasets
    import pandas as pd

MEMORY = "memory"
"""The ``task.source`` of rows in memory."""
TRAIN = "train"

Rows: TypeAlias = Union["datasets.Dataset", "pd.DataFrame", Iterable[Mapping[str, Any]]]
"""A table: a data set of ``datasets``, a frame of pandas, or mappings of column to value."""
Splits: TypeAlias = Mapping[str, Rows]
"""Tables by the name of their split, such as a ``datasets.DatasetDict``."""

_held: ContextVar[dict[str, Rows] | None] = ContextVar("rows_in_memory", default=None)


@contextmanager
def rows_in_memory(rows: Rows | Splits | None, *, split: str = TRAIN) -> Iterator[None]:
    """Holds rows inside the block, where ``task.source=memory`` reads them.

    Args:
        rows: Of one split, or of several by name; None: there are none, and nothing changes.
        split: What one table is of.

    Raises:
        InputError: They are no rows.
    """
    if rows is None:
        yield
        return
    token = _held.set(split_tables(rows, split))
    try:
        yield
    finally:
        _held.reset(token)


def split_tables(rows: Rows | Splits, split: str = TRAIN) -> dict[str, Rows]:
    """Returns the tables by split; one table alone is of ``split``.

    Raises:
        InputError: They are no rows.
    """
    tables = dict(rows) if isinstance(rows, Mapping) else {split: rows}
    for name, table in tables.items():
        if not isinstance(name, str) or (isinstance(rows, Mapping) and not _names_split(name)):
            raise InputError(
                f"rows must be a table, or tables by split ({', '.join(SPLITS)}), got a mapping"
                " with other keys."
            )
        if isinstance(table, str | bytes | Mapping) or not isinstance(table, Iterable):
            raise InputError(
                "rows must be a datasets.Dataset, a pandas frame or a list of dicts, got"
                f" {type(table).__name__}; a file is given by task.data_dir=FILE."
            )
        if not (_is_frame(table) or _is_data_set(table)):
            tables[name] = list(table)  # Every reading is to find the same rows.
    return tables


def held_splits() -> tuple[str, ...]:
    """Returns the splits of which rows are held; none outside of ``rows_in_memory``."""
    return tuple(_held.get() or ())


def memory_rows(split: str) -> Iterator[Row]:
    """Yields the rows held of a split, not yet checked.

    Raises:
        InputError: None are held, or one is no mapping, or two columns have one name.
    """
    note_records_read()
    held = _held.get()
    if held is None:
        raise InputError(
            f"task.source={MEMORY} reads the rows that a program gave, dpft.train(rows=...), and"
            " they are not on disk; give them again from Python (with resume=RUN or run=RUN too),"
            " or a file with task.data_dir=FILE."
        )
    if split not in held:
        raise InputError(
            f"rows hold no {split} split, only {', '.join(held)}; give rows={{'{TRAIN}': ...,"
            f" '{split}': ...}}, or hold records out with eval.held_out=0.1."
        )
    for number, values in enumerate(_mappings(held[split]), start=1):
        place = f"rows of the {split} split, row {number}"
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise InputError(f"{place}: must be a mapping of column names, in text, to values.")
        yield Row(place, {name: _plain(value) for name, value in values.items()})


def _names_split(name: str) -> bool:
    """Returns whether a name is a split's, or that of a part of one: validation_matched."""
    return name.partition("_")[0] in SPLITS


def _is_frame(table: object) -> bool:
    # Whoever has a frame has imported pandas; dpft itself does without.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, pandas.DataFrame)


def _is_data_set(table: object) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(table, datasets.Dataset)


def _mappings(table: Any) -> Iterator[Any]:
    if not _is_frame(table):
        mappings: Iterator[Any] = iter(table)
        return mappings
    if not table.columns.is_unique:
        raise InputError("rows must have columns of different names, got a frame with one twice.")
    # What a frame lacks is NaN or NaT; a file's missing cell is None.
    records: list[Any] = table.astype(object).where(table.notna(), None).to_dict("records")
    return iter(records)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
