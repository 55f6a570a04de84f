r"""Templates over the columns of a row: ``{question}\nAnswer:`` filled, and read back.

Braces are Python's (``string.Formatter``): ``{{`` and ``}}`` stand for themselves. Nothing but a
column's name may stand between them: templates are configuration, rows are data, and neither runs.
A backslash and an n, as a shell hands it over, is a line break.

>>> template = ColumnTemplate.parse(r"{question}\nAnswer: {answer}", key="task.text")
>>> template.fill({"question": "Why?", "answer": 42})
'Why?\nAnswer: 42'
>>> template.read("Why not?\nAnswer: 43")
{'question': 'Why not?', 'answer': '43'}
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from string import Formatter
from typing import Any

from dpft.errors import InputError

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, kw_only=True)
class ColumnTemplate:
    """A template in its parts: literal, column, literal, …, literal."""

    key: str
    """The configuration key it stands under, for messages."""
    literals: tuple[str, ...]
    """The template's own text, one more than ``columns``; may be empty."""
    columns: tuple[str, ...]
    """The columns in order; one may stand twice."""
    seams: frozenset[tuple[int, int]] = frozenset()
    """Places in the literals, by number and letter, where a text that is read may have a blank."""

    @classmethod
    def parse(cls, text: str, *, key: str, needs_column: bool = True) -> "ColumnTemplate":
        """Returns the template that ``text`` spells.

        Args:
            text: What the user wrote.
            key: The configuration key it stands under.
            needs_column: Whether a text without a column is refused.

        Raises:
            InputError: Braces do not match, or hold something else than a column's name.
        """
        plain = re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text)
        literals, columns = _parts(plain, key)
        if needs_column and not columns:
            raise InputError(
                f"{key} must name a column, as in '{{answer}}', got {text!r}, which names none."
            )
        return cls(key=key, literals=literals, columns=columns)

    @property
    def lead(self) -> str:
        """The text before the first column; all of it where there is no column."""
        return self.literals[0]

    @property
    def separator(self) -> str:
        """The text after the last column; none where there is no column."""
        return self.literals[-1] if self.columns else ""

    def followed_by(self, other: "ColumnTemplate") -> "ColumnTemplate":
        """Returns the template of both texts as one, as a model writes it.

        A model has learned the lead, the columns with the separator, and the other text as pieces
        tokenised apart, and some tokenizers (Llama's, the embedded model's) begin a piece with a
        blank.
        """
        last = len(self.columns)
        seams = {(0, len(self.lead)), (last, len(self.literals[-1]))}
        if last:
            seams.add((last, 0))  # where a separator begins, which a text without columns lacks
        return ColumnTemplate(
            key=f"{self.key} and {other.key}",
            literals=(
                *self.literals[:-1],
                self.literals[-1] + other.literals[0],
                *other.literals[1:],
            ),
            columns=self.columns + other.columns,
            seams=frozenset(seams),
        )

    def fill(self, row: Mapping[str, Any]) -> str:
        """Returns the text of a row.

        Args:
            row: Column name to text or number; a number is written as JSON has it.

        Raises:
            InputError: A column holds neither; the message does not quote it.
        """
        values = [self._value(row, column) for column in self.columns]
        tail = zip(values, self.literals[1:], strict=True)
        return self.literals[0] + "".join(value + literal for value, literal in tail)

    def is_blank(self, row: Mapping[str, Any]) -> bool:
        """Returns whether all its columns hold nothing but blanks."""
        return not any(self._value(row, column).strip() for column in self.columns)

    def read(self, text: str) -> dict[str, str] | None:
        """Returns the columns that, filled in, give the text; None where there are none.

        Blanks around the text do not count. Where several divisions fit, earlier columns are short.
        """
        found = self._pattern.fullmatch(text.strip())
        names = dict.fromkeys(self.columns)
        return found and dict(zip(names, found.groups(), strict=True))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = [self._literal(0)]
        seen: dict[str, int] = {}
        for place, column in enumerate(self.columns, start=1):
            again = column in seen
            number = seen.setdefault(column, len(seen) + 1)
            parts += [rf"(?:\{number})" if again else "(.*?)", self._literal(place)]
        return re.compile("".join(parts), re.DOTALL)

    def _literal(self, place: int) -> str:
        """Returns what a literal is read by; blanks around the whole text do not count."""
        text = self.literals[place]
        cuts = [0, *sorted(cut for at, cut in self.seams if at == place), len(text)]
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        if place == 0:
            pieces[0] = pieces[0].lstrip()
        if place == len(self.columns):
            pieces[-1] = pieces[-1].rstrip()
        return " ?".join(map(re.escape, pieces))

    def _value(self, row: Mapping[str, Any], column: str) -> str:
        value = row[column]
        if isinstance(value, str):
            return value
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        if missing or not isinstance(value, bool | int | float):
            held = "is empty" if missing else "holds neither text nor a number"
            raise InputError(
                f"the column {column}, which {self.key} names, {held}; give the row one, or leave"
                " it out."
            )
        return json.dumps(value)


def _parts(text: str, key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the literals and the columns of a template."""
    literals, columns = [""], []
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise InputError(
            f"{key} must hold columns in braces, as in '{{answer}}', got {text!r} ({reason}); write"
            " {{ and }} for braces of its own."
        ) from None
    for literal, column, details, conversion in parsed:
        literals[-1] += literal
        if column is None:
            continue
        if details or conversion or not column.strip() or set(column) & set(".[]{}"):
            raise InputError(
                f"{key} may hold nothing but a column's name in braces, got {text!r}; rename a"
                " column by task.column_aliases, and write {{ and }} for braces of its own."
            )
        columns.append(column)
        literals.append("")
    return tuple(literals), tuple(columns)
