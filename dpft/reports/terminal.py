"""The answer of a command on stdout: sentences, tables rendered by rich, or one JSON object.

On a terminal, text is wrapped to its width and headings are bold. In a pipe or a file, each
sentence and each row of a table is one line without color, so that the output can be searched.
"""

import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpft.strict_model import json_text

CODE, STRONG = re.compile(r"`([^`]*)`"), re.compile(r"\*\*([^*]+)\*\*")

UNWRAPPED = 100_000
"""Width of the output in a pipe, in columns, so that no line is wrapped."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table that rich can render."""

    rows: Sequence[Sequence[str | Text]]
    columns: Sequence[str] = ()
    """Headings of the columns; empty for rows of quantities and values."""
    title: str = ""

    def __rich__(self) -> RenderableType:
        """Return the table for rich, with right-aligned columns of numbers."""
        table = Table(
            box=None, show_header=bool(self.columns), pad_edge=False, padding=(0, 2, 0, 0)
        )
        width = max(map(len, [*self.rows, self.columns]), default=0)
        for place in range(width):
            head = self.columns[place] if self.columns else ""
            cells = [str(row[place]) for row in self.rows if place < len(row)]
            are_numbers = all(cell[0].isdigit() or cell[0] in "-–+" for cell in cells if cell)
            right = bool(self.columns) and place > 0 and are_numbers
            table.add_column(
                Text(head, style="dim"),
                justify="right" if right else "left",
                overflow="fold",
                no_wrap=right,
                min_width=min(12, max(map(len, cells), default=0)) if place == 0 else None,
            )
        for row in self.rows:
            table.add_row(*(cell if isinstance(cell, Text) else styled(cell) for cell in row))
        if not self.title:
            return table
        return Group(Text(self.title, style="bold"), Padding(table, (0, 0, 0, 2)))


def show(parts: Sequence[Grid | str | Text]) -> None:
    """Print sentences and tables, with a blank line before each table that has a title.

    Args:
        parts: Sentences and tables in their order; in a sentence, ``**x**`` is bold and `` `x` ``
            is code.
    """
    if sys.stdout.isatty():
        _print(parts, Console(highlight=False))
        return
    buffer = io.StringIO()
    _print(parts, Console(file=buffer, width=UNWRAPPED, color_system=None, highlight=False))
    print("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()))


def styled(text: str) -> Text:
    """Return a sentence of a report without its Markdown marks; strong text is bold.

    >>> styled("**No** `run` is left.").plain
    'No run is left.'
    """
    rich_text = Text()
    for place, piece in enumerate(STRONG.split(CODE.sub(r"\1", text))):
        rich_text.append(piece, style="bold" if place % 2 else None)
    return rich_text


def _print(parts: Sequence[Grid | str | Text], console: Console) -> None:
    for place, part in enumerate(parts):
        if place and isinstance(part, Grid) and part.title:
            console.print()
        console.print(styled(part) if isinstance(part, str) else part)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a command for people and for programs."""

    table: str | Sequence[Grid | str]
    """Lines of text, or sentences and tables for ``show``."""
    record: Any
    """A model, or values that JSON can represent."""


def show_answer(answer: Answer, output: str) -> None:
    """Print an answer: ``table`` for people, or ``json`` as one object for programs."""
    if output == "json":
        print(json_text(answer.record))
    elif isinstance(answer.table, str):
        print(answer.table)
    else:
        show(answer.table)


class Figures(Mapping[str, Any]):
    """The record of an answer, whose keys are also attributes: ``figures.epsilon``.

    Examples:
        >>> figures = Figures({"epsilon": 2.99, "epsilons": {"prv": {"upper": 2.99}}})
        >>> figures.epsilon == figures["epsilon"] == figures.epsilons.prv.upper
        True
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = dict(record)

    def __getitem__(self, key: str) -> Any:
        return _figures(self._record[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._record:
            raise AttributeError(f"there is no {name} here, only {', '.join(self._record)}")
        return self[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._record]

    def __repr__(self) -> str:
        return f"Figures({self._record!r})"


def _figures(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Figures(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_figures(inner) for inner in value]
    return value
