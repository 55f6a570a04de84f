r"""Templates that combine the columns of a row into a text, and infilling templates.

A `ColumnTemplate` is filled from a row's columns, and extracts columns from a generated text.
Braces are Python's (``string.Formatter``): ``{{`` and ``}}`` are literal braces. Only the name of a
column may be between braces. Templates are configuration, rows are data, and neither is executed. A
backslash followed by n, as a shell passes it, is a line break.

>>> template = ColumnTemplate.parse(r"{question}\nAnswer: {answer}", key="task.text")
>>> template.fill({"question": "Why?", "answer": 42})
'Why?\nAnswer: 42'
>>> template.read("Why not?\nAnswer: 43")
{'question': 'Why not?', 'answer': '43'}

An infilling `Template` puts text around a record (Li et al. 2022, Table 10): ``<S1>`` and ``<S2>``
represent the record's texts, and ``[MASK]`` represents the label word.

>>> template = Template.parse("<S1> It was [MASK] .", texts=1)
>>> [part.text for part in template.parts]
['<S1>', ' It was', '[MASK]', ' .']
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from string import Formatter
from typing import Any

from dpft.errors import InputError
from dpft.tasks.base import TemplateSegment, is_unicode

MASK = "[MASK]"
_PLACES = re.compile(r"(<[^<>\s]*>|\[MASK\])")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A segment of a template: a record's text, the mask, or the template's own text."""

    text: str
    """The template's own text, including the blank before it; or the placeholder, such as
    ``<S1>``."""
    source: int | None = None
    """Index of the record's text that the segment represents; None for the mask and the template's
    text."""
    after_blank: bool = False
    """Whether a blank precedes the segment."""

    @property
    def is_mask(self) -> bool:
        """Whether the segment is the position of the answer."""
        return self.text == MASK and self.source is None


@dataclass(frozen=True, kw_only=True)
class Template:
    """An infilling template as segments, in order."""

    parts: tuple[Part, ...]

    @classmethod
    def parse(cls, text: str, *, texts: int, key: str = "task.template") -> "Template":
        """Parse a template from its text.

        A blank belongs to the segment that follows it, as in byte-level tokenizers. A blank at the
        end is removed.

        Args:
            text: Text with ``<S1>``, ``<S2>`` and one ``[MASK]``.
            texts: Number of texts of a record.
            key: Name of the template in messages.

        Raises:
            InputError: The mask or a field is missing or occurs twice, or a field is unknown.
        """
        fields = [f"<S{number}>" for number in range(1, texts + 1)]
        pieces = _PLACES.split(text)
        for place in pieces[1::2]:
            if place not in (*fields, MASK):
                names = " and ".join((*fields, MASK))
                raise InputError(
                    f"{key} may name {names}, got the unknown field {place}.", key=key, value=text
                )
        for place in (*fields, MASK):
            if pieces[1::2].count(place) != 1:
                raise InputError(
                    f"{key} must contain {place} once, got it {pieces[1::2].count(place)} times in"
                    f" {text!r}.",
                    key=key,
                    value=text,
                )
        return cls(parts=tuple(_parts(pieces, fields)))

    def fill(self, texts: Sequence[str]) -> tuple[TemplateSegment, ...]:
        """Return the template with a record's texts filled in."""
        return tuple(_piece(part, texts) for part in self.parts)

    @property
    def ends_with_mask(self) -> bool:
        """Whether the answer comes at the end of the text."""
        return self.parts[-1].is_mask

    @property
    def blank_before_mask(self) -> bool:
        """Whether a blank precedes the answer, so that the answer is a separate word."""
        return next(part.after_blank for part in self.parts if part.is_mask)


def _piece(part: Part, texts: Sequence[str]) -> TemplateSegment:
    if part.is_mask:
        return TemplateSegment(text="", is_mask=True)
    if part.source is None:
        return TemplateSegment(text=part.text)
    return TemplateSegment(text=" " * part.after_blank + texts[part.source], may_be_cut=True)


def _parts(pieces: list[str], fields: list[str]) -> list[Part]:
    parts: list[Part] = []
    blank = False
    for number, piece in enumerate(pieces):
        if number % 2:
            source = fields.index(piece) if piece in fields else None
            parts.append(Part(text=piece, source=source, after_blank=blank))
            blank = False
            continue
        words = piece.rstrip()
        if words:
            parts.append(Part(text=words, after_blank=words[0].isspace()))
        blank = piece != words
    return parts


_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, kw_only=True)
class ColumnTemplate:
    """A template as alternating literals and columns: literal, column, literal, …, literal."""

    key: str
    """The configuration key of the template, for messages."""
    literals: tuple[str, ...]
    """The template's own text, with one literal more than ``columns``; a literal may be empty."""
    columns: tuple[str, ...]
    """The columns in order; a column may occur twice."""
    seams: frozenset[tuple[int, int]] = frozenset()
    """Positions in the literals, as indices of a literal and of a character, at which ``read``
    accepts an optional blank."""

    @classmethod
    def parse(cls, text: str, *, key: str, needs_column: bool = True) -> "ColumnTemplate":
        """Return the template that ``text`` spells.

        Raises:
            InputError: Braces do not match, or contain anything other than the name of a column.
        """
        plain = re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text)
        literals, columns = _parts_of(plain, key)
        if needs_column and not columns:
            raise InputError(
                f"{key} must name a column, as in '{{answer}}', got {text!r}.", key=key, value=text
            )
        return cls(key=key, literals=literals, columns=columns)

    @property
    def lead(self) -> str:
        """The text before the first column, or all of the text if there is no column."""
        return self.literals[0]

    @property
    def separator(self) -> str:
        """The text after the last column; empty if there is no column."""
        return self.literals[-1] if self.columns else ""

    def followed_by(self, other: "ColumnTemplate") -> "ColumnTemplate":
        """Return one template for this text followed by another, as a model generates them.

        A model has learned the lead, the columns with the separator, and the other text as
        separately tokenized segments. Some tokenizers (Llama's and the bundled model's) start a
        segment with a blank.
        """
        last = len(self.columns)
        seams = {(0, len(self.lead)), (last, len(self.literals[-1]))}
        if last:
            seams.add((last, 0))  # the start of a separator, which a text without columns lacks
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
        """Return the text of a row.

        Args:
            row: Column name to text or number; a number is written as in JSON.

        Raises:
            InputError: A column contains neither text nor a number. The message does not quote it.
        """
        values = [self._value(row, column) for column in self.columns]
        tail = zip(values, self.literals[1:], strict=True)
        return self.literals[0] + "".join(value + literal for value, literal in tail)

    def is_blank(self, row: Mapping[str, Any]) -> bool:
        """Return whether all columns of the template are blank."""
        return not any(self._value(row, column).strip() for column in self.columns)

    def read(self, text: str) -> dict[str, str] | None:
        """Return the columns from which ``fill`` would make the text, or None if it cannot.

        Blanks around the text are ignored. If several divisions fit, earlier columns are as short
        as possible.
        """
        match = self._pattern.fullmatch(text.strip())
        names = dict.fromkeys(self.columns)
        return match and dict(zip(names, match.groups(), strict=True))

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
        """Return the regular expression of a literal; blanks around the whole text are ignored."""
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
            held = "is empty" if missing else "contains neither text nor a number"
            raise InputError(
                f"the column {column}, which {self.key} names, {held}; fill it or remove the row.",
                key=column,
            )
        return json.dumps(value)


def _parts_of(text: str, key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the literals and the columns of a template."""
    literals, columns = [""], []
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise InputError(
            f"{key} must contain columns in braces, as in '{{answer}}', got {text!r} ({reason})."
            " Write {{ and }} for literal braces.",
            key=key,
            value=text,
        ) from None
    for literal, column, details, conversion in parsed:
        literals[-1] += literal
        if column is None:
            continue
        if details or conversion or not column.strip() or set(column) & set(".[]{}"):
            raise InputError(
                f"{key} may contain only a column's name in braces, got {text!r}. Rename the"
                " column with task.column_aliases, and write {{ and }} for literal braces.",
                key=key,
                value=text,
            )
        columns.append(column)
        literals.append("")
    return tuple(literals), tuple(columns)


def text_of(value: Any, what: str) -> str:
    """Return a value that is a text.

    Raises:
        InputError: The value is not a text, or contains a lone surrogate, which cannot be encoded.
    """
    if not isinstance(value, str) or not is_unicode(value):
        raise InputError(f"{what} must be text (a string of valid Unicode).", key=what)
    return value


def texts_of(value: Any, what: str) -> tuple[str, ...]:
    """Return the texts of a list.

    Raises:
        InputError: The value is not a list, or one of its items is not a text.
    """
    return tuple(text_of(item, f"each value of {what}") for item in list_of(value, what, "texts"))


def objects_of(value: Any, what: str) -> tuple[Mapping[str, Any], ...]:
    """Return the objects of a list.

    Raises:
        InputError: The value is not a list, or one of its items is not an object.
    """
    values = list_of(value, what, "objects")
    if not all(isinstance(item, Mapping) for item in values):
        raise InputError(f"{what} must be a list of objects.", key=what)
    return tuple(values)


def list_of(value: Any, what: str, values: str) -> list[Any]:
    """Return a value that is a list.

    Raises:
        InputError: The value is not a list.
    """
    if not isinstance(value, list):
        raise InputError(
            f"{what} must be a list of {values}; a .csv file cannot contain one.", key=what
        )
    return value


def spelled(value: Any) -> str | None:
    """Return a label as spelled in ``task.labels``, or None if the value is not a label.

    >>> [spelled(value) for value in (" spam ", 3, 3.0, 0.5, True, None)]
    ['spam', '3', '3', '0.5', 'true', None]
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() if isinstance(value, str | int | float) else None
