"""The private table: cells checked against the schema, and rows grouped by unit.

No message quotes a cell. The only public number is the number of units, which includes units of
invalid rows.
"""

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft.data import raw_rows
from dpft.data.raw_rows import FORMATS, MEMORY, TRAIN, file_rows, memory_rows
from dpft.data.training_records import split_held_out
from dpft.errors import InputError
from dpft.privacy.plan import EXAMPLE
from dpft.synthesis.rows import RowFormat
from dpft.synthesis.schema import FaultyCell, Row, Schema
from dpft.tasks.templates import spelled

FEWEST = 20
"""Minimum number of rows or units. Nothing useful can be learned privately from fewer."""


@dataclass(frozen=True, kw_only=True)
class PrivateTable:
    """The rows of a table, which are private except for ``num_units``."""

    rows: tuple[Row | None, ...]
    """The rows; None for an invalid row, which is skipped."""
    units: tuple[str, ...]
    """The privacy unit of each row."""
    faults: Counter[str]
    """Number of invalid rows, by the reason."""
    kept: tuple[int, ...] = ()
    """Indices of the rows to learn from."""
    controls: tuple[int, ...] = ()
    """Indices of the controls."""

    @property
    def num_units(self) -> int:
        """The number of units, including units without a valid row."""
        return len(set(self.units))

    def truncated(self, rows: RowFormat, tokenizer: Any) -> "PrivateTable":
        """Return the table with each text cut to the ``max_tokens`` of its column."""
        truncated = (None if row is None else rows.truncated(row, tokenizer) for row in self.rows)
        return replace(self, rows=tuple(truncated))

    def split(self, fraction: float | None, key: bytes) -> "PrivateTable":
        """Return the table with the indices of the rows to learn from and of the controls.

        Args:
            fraction: The share of the units that are controls; None for no controls.
            key: A secret key; the same key gives the same division.
        """
        everything: tuple[Sequence[int], Sequence[int]] = (range(len(self.rows)), ())
        sides = everything if fraction is None else split_held_out(self.units, fraction, key)
        kept, controls = ([at for at in side if self.rows[at] is not None] for side in sides)
        if not kept or (fraction is not None and not controls):
            raise InputError(
                "data has too few valid rows for the training and for controls. Fix the schema, or"
                " change eval.held_out (null: no controls).",
                key="eval.held_out",
                value=fraction,
            )
        return replace(self, kept=tuple(kept), controls=tuple(controls))

    def rows_at(self, indices: Sequence[int]) -> list[Row]:
        """Return the valid rows at the given indices."""
        return [row for row in map(self.rows.__getitem__, indices) if row is not None]

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed hash of all rows in order, which must stay as secret as the key."""
        digest = hmac.new(key, b"rows of a table\n", hashlib.sha256)
        for row, unit in zip(self.rows, self.units, strict=True):
            digest.update(json.dumps([unit, row]).encode() + b"\n")
        return digest.hexdigest()


def source_rows(data: str) -> Iterator[raw_rows.Row]:
    """Return the rows of a file, read on demand, or of a table in memory."""
    if data == MEMORY:
        return iter(memory_rows(TRAIN))
    path = Path(data).expanduser()
    if not data.endswith(tuple(FORMATS)) or not path.is_file():
        raise InputError(
            f"data must be the file of a table ({', '.join(FORMATS)}), got {data!r}.",
            key="data",
            value=data,
        )
    return iter(file_rows(path))


def read_table(
    rows: Iterable[raw_rows.Row], schema: Schema, *, unit: str, invalid: str
) -> PrivateTable:
    """Return the rows of a table, validated by its schema.

    Args:
        rows: The rows of the file.
        schema: The public schema.
        unit: example, or the column of the privacy unit.
        invalid: Treatment of an invalid row: error, missing or skip.

    Raises:
        InputError: The columns differ from the schema, a row is invalid and ``invalid`` is error,
            or there are too few rows.
    """
    valid: list[Row | None] = []
    units: list[str] = []
    faults: Counter[str] = Counter()
    columns: dict[str, None] = {}
    for row in rows:
        if row.fault is None and not columns and row.has_columns:
            # The first row of a table has all columns. Objects in a .jsonl file may lack some.
            absent = [schema.named[name] for name in schema.named.keys() - row.values.keys()]
            if any(column.is_learned and not column.missing for column in absent):
                schema.check_columns(row.values, place=row.place)
        columns |= dict.fromkeys(row.values)
        name = str(len(units)) if unit == EXAMPLE else spelled(row.values.get(unit))
        if not name:
            raise InputError(
                f"{row.place}: the column {unit}, which privacy.unit names, needs a value.",
                key=row.place,
            )
        units.append(name)
        valid.append(_valid(row, schema, invalid, faults))
    schema.check_columns(columns or schema.named, place="the data")
    table = PrivateTable(rows=tuple(valid), units=tuple(units), faults=faults)
    if table.num_units < FEWEST:
        noun = "rows" if unit == EXAMPLE else f"values of {unit}"
        raise InputError(
            f"data must have at least {FEWEST} {noun}, because nothing can be learned privately"
            f" from fewer, got {table.num_units or 'none'}.",
            key="data",
            value=table.num_units,
        )
    return table


def _valid(row: raw_rows.Row, schema: Schema, invalid: str, faults: Counter[str]) -> Row | None:
    """Return a row after validation, or None if it is skipped; this depends only on the row."""
    try:
        return schema.row(row.sound())
    except InputError as error:
        if invalid == "error":
            place = f"{row.place}: " if isinstance(error, FaultyCell) else ""
            raise InputError(
                f"{place}{str(error).rstrip('.')}. Fix the row or the schema, or use"
                " invalid=missing.",
                key=error.faults[0].key,
                hint="invalid=skip",
            ) from None
        is_row = isinstance(error, FaultyCell)
        faults[str(error) if is_row else "the row is not valid in the file's format"] += 1
    try:
        return schema.row(row.sound(), blank_invalid=True) if invalid == "missing" else None
    except InputError:
        return None
