"""What a row holds, as its task reads it: columns by name, examples, the unit it belongs to.

No message quotes a row. Its columns are named where messages go to a terminal, which its owner
reads, and nowhere else: in a file without a header they are a record.
"""

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any, TypeVar

from dpft.data.readers import Row
from dpft.errors import InputError
from dpft.tasks.base import Task
from dpft.tasks.records import Example, Record, is_unicode

Made = TypeVar("Made")
TEMPLATES = ("text", "prompt", "target")
"""Last parts of the keys whose values name columns in braces."""
LONGEST_NAME = 40
"""Letters of a column's name that a message shows."""


def examples_of(task: Task, row: Row) -> Sequence[Record]:
    """Returns the examples a row stands for.

    Raises:
        InputError: A column is missing or faulty; names file and line.
    """
    optional = [column for column in task.optional_columns if _present(task, row, column)]
    values = row_values(task, row, task.columns) | row_values(task, row, optional)
    return made_at(row, task.examples, values)


def made_at(row: Row, make: Callable[[Mapping[str, Any]], Made], values: Mapping[str, Any]) -> Made:
    """Returns what the task makes of a row's values; a refusal says which row it is of."""
    try:
        return make(values)
    except InputError as error:
        raise InputError(f"{row.place}: {error}") from None


def set_apart(examples: Sequence[Record], taken: set[str]) -> Sequence[Record]:
    """Returns a row's examples, their groups renamed where an earlier row has them: "… (2)".

    Args:
        examples: Of one row.
        taken: Groups of the rows before; those of this row join them.
    """
    texts = [example for example in examples if isinstance(example, Example)]
    names = {group: _unused(group, taken) for group in {example.group for example in texts}}
    taken.update(names.values())
    return [replace(example, group=names[example.group]) for example in texts]


def _unused(group: str, taken: set[str]) -> str:
    numbered = (f"{group} ({number})" for number in count(2))
    return next(name for name in chain([group], numbered) if name not in taken)


def row_values(task: Task, row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """Returns a row's values of some of the task's columns, under the task's own names.

    Raises:
        InputError: A column is missing, or does not hold text where it must.
    """
    return {column: _value(task, row, column, columns) for column in columns}


def _value(task: Task, row: Row, column: str, needed: Sequence[str]) -> object:
    present = [column] if column in row.values else _present(task, row, column)
    if not present:
        names = _names(task, column)
        raise InputError(
            f"{row.place}: lacks the column {' (or '.join(names)}{')' * (len(names) - 1)}"
            f"{_needed_by(task, row, column, needed)}"
        )
    value = row.values[present[0]]
    if column in task.untyped_columns and not isinstance(value, str):
        return value
    if not isinstance(value, str) or not is_unicode(value):
        raise InputError(
            f"{row.place}: the column {present[0]} must hold text (a string of valid Unicode)."
        )
    return value


def _names(task: Task, column: str) -> list[str]:
    """Returns the names under which a row may hold a column: its own, then its aliases."""
    return [column, *(alias for alias, name in task.column_aliases.items() if name == column)]


def _present(task: Task, row: Row, column: str) -> list[str]:
    """Returns those of a column's names that the row has."""
    return [name for name in _names(task, column) if name in row.values]


def _needed_by(task: Task, row: Row, column: str, needed: Sequence[str]) -> str:
    """Returns the end of the error of a missing column: what asks for it, and where to look."""
    key = task.column_key(column)
    if key is None:
        return f"; task={task.name} needs {', '.join(needed)}."
    return _named_by(key, row, column)


def _named_by(key: str, row: Row, column: str) -> str:
    """Returns the end of the error of a missing column that a configuration key names.

    What stands for a column's name may be a record: the first one, in a file without a header.

    Args:
        key: The key.
        row: The row.
        column: What the key calls the column.
    """
    names, hint = f"{len(row.values)} columns under other names", "correct the one or the other"
    if sys.stderr.isatty():
        names = ", ".join(map(_shown, row.values))
        near = difflib.get_close_matches(column, row.values, n=1)
        is_template = key.rpartition(".")[2] in TEMPLATES
        hint = f"did you mean {f'{{{near[0]}}}' if is_template else near[0]}?" if near else hint
    return (
        f", which {key} names; the row has {names}: {hint} (the first line of a .csv file is its"
        " header)."
    )


def _shown(name: str) -> str:
    """Returns a column's name for a terminal: nothing that moves its cursor, a long one cut."""
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def unit_of(row: Row, column: str) -> str:
    """Returns the value that says whose record a row is; never shown."""
    if not row.has_columns:
        raise InputError(
            f"{row.place}: a text file has no columns, so none is {column}, which privacy.unit"
            " names; give .jsonl, .csv or .parquet files that have it, or privacy.unit=example."
        )
    if column not in row.values:
        named = _named_by("privacy.unit", row, column)
        raise InputError(f"{row.place}: lacks the column {column}{named}")
    value = row.values[column]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    known = is_number or (isinstance(value, str) and is_unicode(value))
    text = str(value).strip() if known else ""
    if not text:
        raise InputError(
            f"{row.place}: the column {column}, which privacy.unit names, must hold text (valid"
            " Unicode) or a whole number in every row: a record without it is nobody's; give it"
            " one, or leave it out."
        )
    return text
