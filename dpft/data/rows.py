"""Conversion of raw rows to a task's examples with their privacy unit, and a reader of prompts.

No message quotes a row. Messages name the columns of a row only on a terminal, which the owner of
the data reads. If a file has no header, its first record would be taken for the column names. Text
that a model generates after a user's prompt is post-processing only if the prompt contains no
training record. dpft therefore rejects the data files of the run as prompts.
"""

import difflib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from dpft.data.raw_rows import (
    EMBEDDED_SAMPLE,
    FORMATS,
    MEMORY,
    FaultyRow,
    Row,
    file_rows,
    memory_rows,
)
from dpft.data.split_files import files_by_split
from dpft.errors import Fault, InputError
from dpft.tasks.base import SKIPPED, Example, Record, Task, TextTask, is_unicode

Given = TypeVar("Given")
Made = TypeVar("Made")
Check: TypeAlias = Callable[[Any], None]
"""Function that raises ``InputError`` for an example that the model cannot read, such as
``Encoding.check``."""
TEMPLATES = ("text", "prompt", "target")
"""Last parts of the keys of templates. Templates name columns in braces."""
LONGEST_NAME = 40
"""Maximum number of characters of a column name that a message shows."""


def accept_all(record: Record) -> None:
    """Accept every record; used if no model restricts which records can be read."""


def examples_of(
    task: Task, row: Row, *, blank: bool = False, check: Check = accept_all
) -> Sequence[Record]:
    """Return the examples that a task creates from a row.

    Args:
        task: Task that defines the meaning of a row.
        row: Row of the task's data.
        blank: Whether to read a missing or invalid value as an empty text.
        check: Function that raises ``InputError`` for an example that the model cannot read.

    Raises:
        FaultyRow: A column is missing or invalid, or ``check`` fails. The message names the file
            and line.
    """
    row.sound()
    optional = [column for column in task.optional_columns if _present(task, row, column)]
    if blank:
        values = {
            column: _text_or_blank(task, row, column) for column in (*task.columns, *optional)
        }
    else:
        values = row_values(task, row, task.columns) | row_values(task, row, optional)
    examples = make_from_row(row, task.examples, values)
    for example in examples:
        make_from_row(row, check, example)
    return examples


def make_from_row(row: Row, make: Callable[[Given], Made], values: Given) -> Made:
    """Return ``make(values)`` for the values of a row; an error names the row.

    Raises:
        FaultyRow: ``make`` raised an ``InputError``.
    """
    try:
        return make(values)
    except InputError as error:
        message = "\n".join(fault.message for fault in error.faults)
        raise FaultyRow(row.place, message, error.faults[-1].hint) from None


MOST_KINDS, MOST_LINES, ENOUGH = 10, 10, 1000
"""Maximum number of reported faults, of named lines per fault, and of invalid rows before reading
stops."""


class FaultyRows:
    """Collector of a split's invalid rows, so that one error names the lines of all of them."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, str | None], list[str]] = {}
        self._number = 0

    @property
    def are_any(self) -> bool:
        """Whether any invalid row was added."""
        return self._number > 0

    @property
    def are_enough(self) -> bool:
        """Whether there are so many invalid rows that reading can stop."""
        return self._number >= ENOUGH

    def add(self, row: FaultyRow) -> None:
        """Add the place and the fault of a row."""
        self._number += 1
        before, _, number = row.place.rpartition(" ")
        if not number.isdigit():
            before, number = row.place, ""
        kind = (before, row.fault, row.hint)
        if kind in self._lines or len(self._lines) < MOST_KINDS:
            lines = self._lines.setdefault(kind, [])
            if len(lines) <= MOST_LINES:
                lines.append(number)

    def refused(self, *others: Fault, may_skip: bool) -> InputError:
        """Return one error for all invalid rows.

        Args:
            others: Further faults to report in the same error.
            may_skip: Whether the last fault suggests skipping the rows, if it has no other hint.
        """
        faults = []
        for (before, message, hint), lines in self._lines.items():
            place = _lines(before, lines)
            faults.append(Fault(f"{place}: {message}", key=place, hint=hint))
        if may_skip and faults[-1].hint is None:
            faults[-1] = replace(faults[-1], hint=f"task.invalid={SKIPPED}")
        return InputError(*faults, *others)


def _lines(before: str, lines: Sequence[str]) -> str:
    """Return the place of the rows with a fault, such as "x.csv, lines 3, 8 and 9"."""
    if len(lines) == 1:
        return f"{before} {lines[0]}".rstrip()
    *first, last = lines
    if len(lines) > MOST_LINES:
        last = "others"
    return f"{before}s {', '.join(first)} and {last}"


def with_unique_groups(examples: Sequence[Record], taken: set[str]) -> Sequence[Record]:
    """Return the examples of a row; a group that an earlier row has is renamed to "GROUP (2)"."""
    texts = [example for example in examples if isinstance(example, Example)]
    names = {group: _unused(group, taken) for group in {example.group for example in texts}}
    taken.update(names.values())
    return [replace(example, group=names[example.group]) for example in texts]


def _unused(group: str, taken: set[str]) -> str:
    numbered = (f"{group} ({number})" for number in count(2))
    return next(name for name in chain([group], numbered) if name not in taken)


def row_values(task: Task, row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Return a row's values of some of the task's columns, by the names that the task uses.

    Raises:
        FaultyRow: A column is missing, or does not contain text although it must.
    """
    row.sound()
    return {column: _value(task, row, column, columns) for column in columns}


def _value(task: Task, row: Row, column: str, needed: Sequence[str]) -> object:
    present = [column] if column in row.values else _present(task, row, column)
    if not present:
        names = _names(task, column)
        key = task.column_key(column)
        if key is None:
            advice = f". task={task.name} needs {', '.join(needed)}."
        else:
            advice = _named_by(key, row, column)
        raise FaultyRow(
            row.place,
            f"the row has no column {' (or '.join(names)}{')' * (len(names) - 1)}{advice}",
        )
    value = row.values[present[0]]
    if column in task.untyped_columns and not isinstance(value, str):
        return value
    if not isinstance(value, str) or not is_unicode(value):
        empty = ", but is empty" if value is None else ""
        raise FaultyRow(
            row.place,
            f"the column {present[0]} must contain text (a string of valid Unicode){empty}.",
        )
    return value


def _text_or_blank(task: Task, row: Row, column: str) -> object:
    """Return a row's value of a column, or an empty text if the value is missing or invalid."""
    try:
        value = _value(task, row, column, task.columns)
    except FaultyRow:
        return ""
    is_missing = value is None or (isinstance(value, float) and not math.isfinite(value))
    return "" if is_missing else value


def _names(task: Task, column: str) -> list[str]:
    """Return the names that a column may have in a row: its own name, then its aliases."""
    return [column, *(alias for alias, name in task.column_aliases.items() if name == column)]


def _present(task: Task, row: Row, column: str) -> list[str]:
    """Return the names of a column that occur in the row."""
    return [name for name in _names(task, column) if name in row.values]


def _named_by(key: str, row: Row, column: str) -> str:
    """Return the end of the error message for a missing column that a configuration key names.

    If the file has no header, the column names are the first record, so they are shown only on a
    terminal.
    """
    number = len(row.values)
    if row.short_of is not None:
        return (
            f", which {key} names. The row has {number} cells, but the header has {row.short_of}."
        )
    names = f"{number} column{'s' * (number != 1)} under other names"
    hint = f"correct {key} or the file"
    if sys.stderr.isatty():
        names = ", ".join(map(_shown, row.values))
        near = difflib.get_close_matches(column, row.values, n=1)
        is_template = key.rpartition(".")[2] in TEMPLATES
        hint = f"did you mean {f'{{{near[0]}}}' if is_template else near[0]}?" if near else hint
    return (
        f", which {key} names. The row has {names}: {hint} (the first line of a .csv file is its"
        " header, separated by commas, or by semicolons, tabs or | if it has no comma)."
    )


def _shown(name: str) -> str:
    """Return a column name for a terminal, without control characters and of limited length."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def unit_of(row: Row, column: str) -> str:
    """Return the privacy unit of a row, such as a customer id, which messages never show.

    Raises:
        InputError: The file has no columns.
        FaultyRow: The row has no valid value in the column.
    """
    row.sound()
    if not row.has_columns:
        raise InputError(
            f"{row.place}: privacy.unit names the column {column}, but a text file has no columns."
            " Use .jsonl, .csv or .parquet files that contain it.",
            key="privacy.unit",
            value=column,
            hint="privacy.unit=example",
        )
    if column not in row.values:
        named = _named_by("privacy.unit", row, column)
        raise FaultyRow(row.place, f"the row has no column {column}{named}")
    value = row.values[column]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_valid = is_number or (isinstance(value, str) and is_unicode(value))
    text = str(value).strip() if is_valid else ""
    if not text:
        empty = ", but is empty" if value is None or is_valid else ""
        raise FaultyRow(
            row.place,
            f"the column {column}, which privacy.unit names, must contain text (valid Unicode) or a"
            f" whole number{empty}. Add the value, or remove the row.",
        )
    return text


PROMPTS = "prompts"
"""Name under which a table of prompts is stored in memory."""


def load_prompts(
    task: TextTask, file: str, check: Check = accept_all
) -> list[tuple[dict[str, Any], Example]]:
    """Return the prompt columns of each row, and the prompt that the task creates from them.

    Args:
        task: Task that defines the prompt columns.
        file: File with prompts, or ``MEMORY`` for prompts in memory.
        check: As in ``examples_of``.

    Raises:
        InputError: The file is missing, empty or in another format, or has invalid rows. The
            message names the file and lines and never quotes a row.
    """
    prompts = []
    faulty = FaultyRows()
    for row in memory_rows(PROMPTS) if file == MEMORY else _file_rows(file):
        try:
            values = row_values(task, row, task.given_columns)
            prompt = make_from_row(row, task.prompt, values)
            make_from_row(row, check, prompt)
        except FaultyRow as error:
            faulty.add(error)
            if faulty.are_enough:
                break
        else:
            prompts.append((values, prompt))
    if faulty.are_any:
        raise faulty.refused(may_skip=False)
    if not prompts:
        raise InputError(
            f"prompts must contain at least one row, got none in {file!r}.",
            key="prompts",
            value=file,
        )
    return prompts


def _file_rows(file: str) -> Iterator[Row]:
    if not file.endswith(tuple(FORMATS)):
        raise InputError(
            f"prompts must end with {', '.join(FORMATS)}, got {file!r}.", key="prompts", value=file
        )
    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError(
            f"prompts must name a file, got {file!r}, which is not a file.",
            key="prompts",
            value=file,
        )
    return file_rows(path)


def are_records(task: Task, file: str) -> bool:
    """Return whether a file is one of the run's data files, even under another name."""
    path = Path(file).expanduser()
    return path.exists() and any(path.samefile(split) for split in split_files(task))


def split_files(task: Task) -> list[Path]:
    """Return the local files that contain the splits of the task."""
    if task.effective_source == "embedded":
        return [entry for entry in EMBEDDED_SAMPLE.iterdir() if entry.is_file()]
    if task.data_dir is None:
        return []
    place = Path(task.data_dir).expanduser()
    if task.corpus_form is not None:
        files = [place, *place.rglob("*")]
    else:
        files = [place, *chain(*files_by_split(place, task.all_parts, FORMATS).values())]
    return [path for path in files if path.is_file()]
