"""The private table: read and checked cell by cell, so many rows a unit, controls held out.

Nothing of it is quoted, and nothing of it becomes public but its number of rows (or of units),
where that is not given: also of a row that does not fit, which the number counts.
"""

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.data.raw_rows import FORMATS, MEMORY, TRAIN, Row, file_rows, memory_rows
from dpft.data.training_records import split_held_out
from dpft.errors import InputError
from dpft.privacy.plan import EXAMPLE
from dpft.synthesis.schema import FaultyCell, Schema
from dpft.synthesis.schema import Row as TableRow
from dpft.tasks.templates import spelled

FEWEST = 20
"""Rows, or units, below which there is nothing that could be learned and hidden."""


@dataclass(frozen=True, kw_only=True)
class PrivateTable:
    """The rows of a table; private but for ``num_units``."""

    rows: tuple[TableRow | None, ...]
    """None: it was not as the schema says, and is left out."""
    units: tuple[str, ...]
    """Whose each row is."""
    faults: Counter[str]
    """How many rows were not as the schema says, by what was wrong."""

    @property
    def num_units(self) -> int:
        """Number of units, those without a row that fits among them."""
        return len(set(self.units))

    def sides(self, fraction: float | None, key: bytes) -> tuple[Sequence[int], Sequence[int]]:
        """Returns the places of the rows to learn from, and of the controls.

        Args:
            fraction: Of the units, for the controls; None: there are none.
            key: Secret; the same one gives the same sides.

        Raises:
            InputError: One side is empty.
        """
        everything: tuple[Sequence[int], Sequence[int]] = (range(len(self.rows)), ())
        kept, held = everything if fraction is None else split_held_out(self.units, fraction, key)
        kept, held = ([at for at in side if self.rows[at] is not None] for side in (kept, held))
        if not kept:
            raise InputError(
                "data left no row to learn from, once controls (eval.held_out) and rows that are"
                " not as the schema says (invalid) were taken out; give more, or mend the schema."
            )
        if fraction is not None and not held:
            raise InputError(
                f"eval.held_out={fraction} left no row to compare with; raise it, or set it to null"
                " for a synthesis without a private page."
            )
        return kept, held

    def fingerprint(self, key: bytes) -> str:
        """Returns a keyed hash of all rows in their order; as secret as the key."""
        digest = hmac.new(key, b"rows of a table\n", hashlib.sha256)
        for row, unit in zip(self.rows, self.units, strict=True):
            cells = None if row is None else {name: repr(value) for name, value in row.items()}
            digest.update(json.dumps([unit, cells]).encode() + b"\n")
        return digest.hexdigest()


def source_rows(data: str) -> Iterator[Row]:
    """Returns the rows of a file, which are read as they are asked for, or those of a program.

    Raises:
        InputError: There is no such file, or none of a known format, at once; later names the line.
    """
    if data == MEMORY:
        return iter(memory_rows(TRAIN))
    path = Path(data).expanduser()
    if not data.endswith(tuple(FORMATS)):
        raise InputError(f"data must end in {', '.join(FORMATS)}, got {data!r}.")
    if not path.is_file():
        raise InputError(f"data must be the file of a table, got {data!r}, which is no file.")
    return iter(file_rows(path))


def read_table(rows: Iterable[Row], schema: Schema, *, unit: str, invalid: str) -> PrivateTable:
    """Returns the rows of a table, checked against its schema.

    Args:
        rows: As they lie.
        schema: What each may hold.
        unit: example, or the column that says whose row it is.
        invalid: What becomes of a row that is not as the schema says: error, missing or skip.

    Raises:
        InputError: A column is not there, or not in the schema; a row does not fit, and invalid is
            error: names its place, and quotes nothing; or there are too few rows.
    """
    found: list[TableRow | None] = []
    units: list[str] = []
    faults: Counter[str] = Counter()
    columns: dict[str, None] = {}
    for row in rows:
        if row.fault is None and not columns and row.has_columns:
            # Of a table the first row has all columns: what it lacks is said before any cell's
            # fault. Objects of a .jsonl may each lack some, and are asked together.
            names = schema.named.keys() - row.values.keys()
            if not all(schema.named[n].missing or not schema.named[n].is_learned for n in names):
                schema.check_columns(row.values, place=row.place)
        columns |= dict.fromkeys(row.values)
        units.append(_unit_of(row, unit, len(units)))
        found.append(_checked(row, schema, invalid, faults))
    if not found:
        raise InputError(f"data must have at least {FEWEST} rows, got none.")
    schema.check_columns(columns, place="the data")
    table = PrivateTable(rows=tuple(found), units=tuple(units), faults=faults)
    if table.num_units < FEWEST:
        noun = "rows" if unit == EXAMPLE else f"values of {unit}"
        raise InputError(
            f"data must have at least {FEWEST} {noun}, got {table.num_units}: of so few nothing can"
            " be learned that hides each of them."
        )
    return table


def _unit_of(row: Row, unit: str, number: int) -> str:
    """Returns whose a row is; where each is its own, its number."""
    if unit == EXAMPLE:
        return str(number)
    if unit not in row.values:
        raise InputError(
            f"privacy.unit must be example or a column of the data, got {unit!r}, which"
            f" {row.place} lacks."
        )
    found = spelled(row.values[unit])
    if not found:
        raise InputError(
            f"{row.place}: the column {unit}, which privacy.unit names, is empty, so that nobody"
            " knows whose row it is; fill it, or leave the row out."
        )
    return found


def _checked(row: Row, schema: Schema, invalid: str, faults: Counter[str]) -> TableRow | None:
    """Returns a row as its schema has it; None where it is left out, as the row alone decides."""
    try:
        return schema.row(row.sound())
    except FaultyCell as error:
        if invalid == "error":
            raise InputError(
                f"{row.place}: {error}; mend the row or the schema, or set invalid=missing or"
                " invalid=skip."
            ) from None
        faults[str(error)] += 1
        return schema.mended(row.values) if invalid == "missing" else None
    except InputError as error:
        if invalid == "error":
            raise InputError(f"{str(error).rstrip('.')}; or set invalid=skip.") from None
        faults["it is no row of the file's format"] += 1
        return None
