"""Rows to a .jsonl, .csv or .parquet file, which ``readers`` reads back."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.files import write_bytes

Rows = Sequence[Mapping[str, Any]]


def write_rows(path: Path, rows: Rows, *, mode: int = 0o644) -> None:
    """Writes the rows in the format that the file's name ends with, whole or not at all.

    The columns of a table come in the order in which rows name them; a row that lacks one has
    nothing there.

    Args:
        path: Ends with one of ``WRITERS``.
        rows: Column name to value, at least one row; .csv has no lists among the values.
        mode: Of the new file.
    """
    write_bytes(path, WRITERS[path.suffix](rows), mode=mode)


def _jsonl(rows: Rows) -> bytes:
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    return "".join(lines).encode()


def _csv(rows: Rows) -> bytes:
    buffer = io.StringIO(newline="")
    table = csv.writer(buffer)
    columns = _columns(rows)
    table.writerow(columns)
    table.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return buffer.getvalue().encode()


def _parquet(rows: Rows) -> bytes:
    import pyarrow  # costs half a second, and no other format needs it
    from pyarrow import parquet

    columns = {column: [row.get(column) for row in rows] for column in _columns(rows)}
    buffer = io.BytesIO()
    parquet.write_table(
        pyarrow.table({name: _array(values) for name, values in columns.items()}), buffer
    )
    return buffer.getvalue()


def _array(values: Sequence[Any]) -> Any:
    """Returns a column, as text where its values are of several types."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.array([_cell(value) for value in values])


def _cell(value: Any) -> str | None:
    """Returns a value as text; a number is written as JSON has it."""
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


WRITERS: dict[str, Callable[[Rows], bytes]] = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
"""Endings of a file's name, in the order they are listed to the user, and what writes each."""
