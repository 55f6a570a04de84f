"""Readers and writers of rows in files or in memory, before a task interprets them.

The file formats are .csv, .jsonl, .jsonl.gz, .json and .parquet (`file_rows`, `write_rows`). A
program can also pass tables (`rows_in_memory`: ``dpft.train(rows=...)``, task.source=memory). Each
row contains its place in the file.

This module has its own readers for two reasons. Private files must not be copied into the cache of
a library (docs/dev/design.md, rule 11). An error must name the file and line but must never quote
the row (rule 7). Exceptions of the parsers may contain row content, so they are not chained. All
formats except .json are streamed.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, Union

import numpy as np

from dpft.errors import InputError, note_records_read
from dpft.run_folder import write_bytes
from dpft.tasks.base import SPLITS

if TYPE_CHECKING:
    import datasets
    import pandas as pd


EMBEDDED_SAMPLE = Path(__file__).parents[1] / "models" / "embedded" / "sample"
"""Folder of the bundled sample data: train, validation and test as .jsonl.gz."""
BYTE_ORDER_MARK = "\ufeff"
# The default limit of the csv module, 131,072 characters per cell, is too low for documents.
csv.field_size_limit(sys.maxsize)


class FaultyRow(InputError):
    """Error for a row that does not have the format that its task requires.

    Attributes:
        place: File and line of the row; the key of the error.
        fault: Description of the fault; the same text for all rows with that fault.
        hint: Override that fixes the fault.
    """

    def __init__(self, place: str, fault: str, hint: str | None = None) -> None:
        super().__init__(f"{place}: {fault}", key=place, hint=hint)
        self.place, self.fault, self.hint = place, fault, hint


class Row(NamedTuple):
    """One row of a table, not yet checked."""

    place: str
    """File and line, or data set and row, for messages."""
    values: Mapping[str, object]
    """Column name to value. A short csv row lacks its last columns."""
    has_columns: bool = True
    """Whether the columns come from the file; a text file has no columns."""
    fault: str | None = None
    """Reason why the row has no values, if its line is invalid in the format of the file."""
    short_of: int | None = None
    """Number of columns in the header, if the row has fewer cells than that."""

    def sound(self) -> Mapping[str, object]:
        """Return the values of the row.

        Raises:
            FaultyRow: The row has a fault and therefore no values.
        """
        if self.fault is not None:
            raise FaultyRow(self.place, self.fault)
        return self.values


Reader: TypeAlias = Callable[[BinaryIO, str], Iterator[Row]]
"""Function that yields the rows of a file, given its stream of bytes and its name for messages."""


def read_rows(
    stream: BinaryIO, file: str, formats: Mapping[str, Reader] | None = None
) -> Iterator[Row]:
    """Yield the rows of a file in the format that the ending of its name indicates.

    Args:
        stream: Bytes of the file.
        file: Path or address of the file; must end with one of ``formats``.
        formats: Readers by file name ending; None means ``FORMATS``.

    Raises:
        InputError: The file cannot be read in that format. The message names the file and line.
    """
    note_records_read()
    readers = FORMATS if formats is None else formats
    ending = next(ending for ending in readers if file.endswith(ending))
    return readers[ending](stream, file)


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Separators between the cells of a .csv file, and their names in messages."""


def csv_rows(stream: Iterable[bytes], file: str) -> Iterator[Row]:
    """Yield the rows of a .csv file, whose first line is the header.

    Commas separate the cells, with one exception. Suppose that splitting the header at commas gives
    a single column, and that exactly one other of ``SEPARATORS`` gives several. Then that separator
    is used. Only the header decides, so no record affects how other records are read.

    Raises:
        InputError: The file is not valid CSV, or two columns have the same name.
    """
    lines = decoded_lines(_csv_lines(stream), file)
    separator, head = _separator(lines)
    advice = f"Quote each cell that contains {SEPARATORS[separator]}"
    reader = csv.reader(chain(head, lines), delimiter=separator, strict=True)
    header: list[str] | None = None
    while True:
        place = line_place(file, reader.line_num + 1)
        try:
            cells = next(reader, None)
        except csv.Error:
            raise InputError(
                f"{place}: not valid CSV. {advice}, quotes or line breaks, and end each line with"
                " the same line break.",
                key=place,
            ) from None
        if cells is None:
            return
        if not cells:
            continue
        if header is None:
            header = cells
            _refuse_twice(header, place)
            continue
        if len(cells) > len(header):
            fault = f"the row has {len(cells)} cells, but the header has {len(header)}"
            yield Row(place, {}, fault=f"{fault}. {advice}.")
            continue
        short_of = len(header) if len(cells) < len(header) else None
        yield Row(place, dict(zip(header, cells, strict=False)), short_of=short_of)


def _csv_lines(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; if a carriage return ends the first line, it ends every line."""
    ends_lines = False
    for number, line in enumerate(stream):
        if number == 0:
            ends_lines = b"\r" in line.rstrip(b"\r\n") or line.endswith(b"\r")
        yield from line.splitlines(keepends=True) if ends_lines else [line]


def _separator(lines: Iterator[str]) -> tuple[str, list[str]]:
    """Return the separator that the header indicates, and the lines read to find it."""
    head: list[str] = []

    def recorded() -> Iterator[str]:
        for line in lines:
            head.append(line)
            yield line

    def has_columns(separator: str) -> bool:
        reader = csv.reader(chain([*head], recorded()), delimiter=separator, strict=True)
        try:
            return len(next(filter(None, reader), ())) > 1
        except csv.Error:
            return False

    comma, *others = SEPARATORS
    shown = [] if has_columns(comma) else list(filter(has_columns, others))
    return (shown[0] if len(shown) == 1 else comma), head


def _refuse_twice(names: Sequence[str], place: str) -> None:
    """Reject two columns with the same name, because a key could refer to either of them.

    Columns without a name, which spreadsheets often leave, are not compared.
    """
    named = [name for name in names if name.strip()]
    if len(set(named)) < len(named):
        raise InputError(f"{place}: two columns have the same name. Rename one of them.", key=place)


def _jsonl_rows(stream: Iterable[bytes], file: str) -> Iterator[Row]:
    for number, line in enumerate(decoded_lines(stream, file), start=1):
        if line.isspace():
            continue
        try:
            values = _DECODER.decode(line)
        except (ValueError, RecursionError):
            values = None
        if isinstance(values, dict):
            yield Row(line_place(file, number), values)
        else:
            fault = "not a JSON object. Each line must contain one complete object."
            yield Row(line_place(file, number), {}, fault=fault)


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its keys and values; a hook for ``json.loads``.

    Raises:
        ValueError: A key occurs twice. Python would use its last value, and other readers its first
            value.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=each_key_once)
"""Shared decoder, because creating a decoder takes as long as reading a short line."""


def packed(read: Callable[[Iterable[bytes], str], Iterator[Row]]) -> Reader:
    """Return a reader of gzip files, which passes the unpacked lines to ``read``."""

    def read_packed(stream: BinaryIO, file: str) -> Iterator[Row]:
        try:
            with gzip.open(stream) as unpacked:
                yield from read(unpacked, file)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise InputError(
                f"{file}: not a complete gzip file. Compress the file again.", key=file
            ) from None

    return read_packed


def _json_rows(stream: Iterable[bytes], file: str) -> Iterator[Row]:
    """Yield the objects of a file that contains one JSON list of objects."""
    text = "".join(decoded_lines(stream, file))
    try:
        values = json.loads(text, object_pairs_hook=each_key_once)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise InputError(
            f"{file}: not a JSON list of objects. Use such a list, or a .jsonl file.", key=file
        )
    for number, value in enumerate(values, start=1):
        place = f"{file}, record {number}"
        if not isinstance(value, dict):
            fault = "not a JSON object. The list in the file must contain only objects."
            yield Row(place, {}, fault=fault)
            continue
        yield Row(place, value)


def _parquet_rows(stream: BinaryIO, file: str) -> Iterator[Row]:
    import pyarrow  # takes half a second, and no other format needs it
    from pyarrow import parquet

    number = 0
    try:
        table = parquet.ParquetFile(stream)
        _refuse_twice(table.schema_arrow.names, file)
        for batch in table.iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                number += 1
                yield Row(f"{file}, row {number}", values)
    except UnicodeDecodeError:
        raise InputError(
            f"{file}, after row {number}: not UTF-8 text. Write the file again.", key=file
        ) from None
    except (pyarrow.ArrowException, OSError):
        raise InputError(
            f"{file}: not a complete Parquet file. Write the file again.", key=file
        ) from None
    except InputError:
        raise
    except (ValueError, OverflowError):  # their messages quote the value
        raise InputError(
            f"{file}, after row {number}: a value, such as a date, is out of Python's range. Remove"
            " its column.",
            key=file,
        ) from None


def decoded_lines(stream: Iterable[bytes], file: str) -> Iterator[str]:
    """Yield the lines as text, including line ends, without a byte-order mark.

    Raises:
        InputError: A line is not UTF-8. The message names the file and line.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            place = line_place(file, number)
            raise InputError(
                f"{place}: not UTF-8 text. Convert the file to UTF-8.", key=place
            ) from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


def line_place(file: str, line: int) -> str:
    """Return the name of a line for messages."""
    return f"{file}, line {line}"


FORMATS: dict[str, Reader] = {
    ".csv": csv_rows,
    ".jsonl": _jsonl_rows,
    ".jsonl.gz": packed(_jsonl_rows),
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
"""Readers by file name ending, in the order in which messages list the endings."""


def file_rows(path: Path, formats: Mapping[str, Reader] | None = None) -> Iterator[Row]:
    """Yield the rows of a file, not yet checked.

    Raises:
        InputError: The file cannot be read. The message names the file and line.
    """
    try:
        with path.open("rb") as stream:
            yield from read_rows(stream, str(path), formats)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", key=str(path)) from error


@dataclass(frozen=True, kw_only=True)
class LocalForm:
    """Functions that read local data of one form."""

    rows: Callable[[Any, str], Iterator[Row]]
    """Function that yields the rows of a task's split; raises ``InputError`` if they cannot be
    read."""
    splits: Callable[[Any], set[str]]
    """Function that returns the splits in a task's data, or no splits if the data cannot be
    read."""


RowValues = Sequence[Mapping[str, Any]]


def write_rows(path: Path, rows: RowValues, *, mode: int = 0o644) -> None:
    """Write the rows atomically, in the format that the ending of the file name indicates.

    The columns of a table appear in the order in which the rows first name them. A row without a
    value for a column has an empty cell there, or null in .parquet.

    Args:
        path: File name that ends with one of ``WRITERS``.
        rows: Column name to value, at least one row. The values of a .csv file must not be lists.
        mode: Permissions of the new file.
    """
    write_bytes(path, WRITERS[path.suffix](rows), mode=mode)


def _jsonl_bytes(rows: RowValues) -> bytes:
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    return "".join(lines).encode()


def _csv_bytes(rows: RowValues) -> bytes:
    buffer = io.StringIO(newline="")
    table = csv.writer(buffer)
    columns = _columns(rows)
    table.writerow(columns)
    table.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return buffer.getvalue().encode()


def _parquet_bytes(rows: RowValues) -> bytes:
    import pyarrow  # takes half a second, and no other format needs it
    from pyarrow import parquet

    columns = {column: [row.get(column) for row in rows] for column in _columns(rows)}
    buffer = io.BytesIO()
    parquet.write_table(
        pyarrow.table({name: _array(values) for name, values in columns.items()}), buffer
    )
    return buffer.getvalue()


def _array(values: Sequence[Any]) -> Any:
    """Return the values as a column, converted to text if they have several types."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.array([_cell(value) for value in values])


def _cell(value: Any) -> str | None:
    """Return a value as text; a value that is not text is written as JSON."""
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def _columns(rows: RowValues) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


WRITERS: dict[str, Callable[[RowValues], bytes]] = {
    ".jsonl": _jsonl_bytes,
    ".csv": _csv_bytes,
    ".parquet": _parquet_bytes,
}
"""Writers by file name ending, in the order in which messages list the endings."""


MEMORY = "memory"
"""The ``task.source`` of rows in memory."""
TRAIN = "train"

Rows: TypeAlias = Union["datasets.Dataset", "pd.DataFrame", Iterable[Mapping[str, Any]]]
"""A table: a data set of ``datasets``, a pandas frame, or mappings of column name to value."""
Splits: TypeAlias = Mapping[str, Rows]
"""Tables by split name, such as a ``datasets.DatasetDict``."""

_held: ContextVar[dict[str, Rows] | None] = ContextVar("rows_in_memory", default=None)


@contextmanager
def rows_in_memory(rows: Rows | Splits | None, *, split: str = TRAIN) -> Iterator[None]:
    """Provide rows for ``task.source=memory`` inside the block.

    Args:
        rows: Rows of one split, or tables by split name. If None, nothing changes.
        split: Split of a single table.

    Raises:
        InputError: ``rows`` is neither a table nor tables by split name.
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
    """Return the tables by split name; a single table belongs to ``split``.

    Raises:
        InputError: ``rows`` is neither a table nor tables by split name.
    """
    tables = dict(rows) if isinstance(rows, Mapping) else {split: rows}
    for name, table in tables.items():
        if not isinstance(name, str) or (
            isinstance(rows, Mapping) and name.partition("_")[0] not in SPLITS
        ):
            raise InputError(
                f"rows must be a table, or tables by split ({', '.join(SPLITS)}), got a mapping"
                " with other keys.",
                key="rows",
            )
        if isinstance(table, str | bytes | Mapping) or not isinstance(table, Iterable):
            raise InputError(
                "rows must be a datasets.Dataset, a pandas frame or a list of dicts, got"
                f" {type(table).__name__}. To read a file, use task.data_dir=FILE.",
                key="rows",
                value=type(table).__name__,
            )
        datasets = sys.modules.get("datasets")
        is_data_set = datasets is not None and isinstance(table, datasets.Dataset)
        if not (_is_frame(table) or is_data_set):
            tables[name] = list(table)  # Every pass must find the same rows.
    return tables


def held_splits() -> tuple[str, ...]:
    """Return the splits of the rows in memory; empty outside of ``rows_in_memory``."""
    return tuple(_held.get() or ())


def memory_rows(split: str) -> Iterator[Row]:
    """Yield the rows of a split in memory, not yet checked.

    Raises:
        InputError: There are no rows of the split, a row is not a mapping, or two columns have the
            same name.
    """
    note_records_read()
    held = _held.get()
    if held is None:
        raise InputError(
            f"task.source={MEMORY} needs rows from Python, dpft.train(rows=...), because they are"
            " not on disk. Pass them again, also with resume=RUN or run=RUN, or use a file with"
            " task.data_dir=FILE.",
            key="task.source",
            value=MEMORY,
        )
    if split not in held:
        raise InputError(
            f"rows have no {split} split, only {', '.join(held)}. Pass rows={{'{TRAIN}': ...,"
            f" '{split}': ...}}, or hold out records for evaluation.",
            key="rows",
            hint="eval.held_out=0.1",
        )
    for number, values in enumerate(_mappings(held[split]), start=1):
        place = f"rows of the {split} split, row {number}"
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise InputError(
                f"{place}: the row must be a mapping of column names (text) to values.", key=place
            )
        yield Row(place, {name: _plain(value) for name, value in values.items()})


def _is_frame(table: object) -> bool:
    # A caller that has a frame has imported pandas; dpft does not import pandas.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, pandas.DataFrame)


def _mappings(table: Any) -> Iterator[Any]:
    if not _is_frame(table):
        mappings: Iterator[Any] = iter(table)
        return mappings
    if not table.columns.is_unique:
        raise InputError(
            "rows must have columns with different names, got a frame with a duplicate name.",
            key="rows",
        )
    # A missing cell is NaN or NaT in a frame, but None in a file.
    records: list[Any] = table.astype(object).where(table.notna(), None).to_dict("records")
    return iter(records)


def _plain(value: Any) -> Any:
    """Return a value without NumPy types; pandas reads lists of .parquet files as arrays."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.dtype == object):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
