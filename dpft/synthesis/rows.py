r"""Rows as text, and text as rows: compact JSON in a fixed order of columns, condition first.

The condition's columns are what a model reads, the others what it writes:

    {"city":"Rome","label":true,   |   "age":42,"note":"says \"no\""}

or without names, which takes fewer tokens, ``["Rome",true,   |   42,"says \"no\""]``. Quotes,
backslashes and control characters of a text are escaped as JSON has it, so that no text can end its
own column; the tests send all of Unicode there and back.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

from dpft.errors import InputError
from dpft.synthesis.columns import Column, Misfit, Text, literal
from dpft.synthesis.schema import Row, Schema

OBJECT, ARRAY = "object", "array"
FORMS = (OBJECT, ARRAY)


class Tokenizer(Protocol):
    """What is needed of a tokenizer of transformers."""

    def __call__(self, text: str, **settings: Any) -> Any:
        """Returns the tokens of a text, under ``input_ids``."""

    def decode(self, token_ids: Sequence[int], **settings: Any) -> Any:
        """Returns the text of some tokens."""


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """How the rows of a schema are written."""

    schema: Schema
    condition: tuple[str, ...] = ()
    """Columns that are read; the model writes the others."""
    form: str = OBJECT

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"form must be one of {', '.join(FORMS)}, got {self.form!r}.")
        if not self.written:
            raise InputError(
                "condition must leave a column for the model to write, got all of them; drop one."
            )

    @cached_property
    def given(self) -> tuple[Column, ...]:
        """The condition's columns."""
        return tuple(self.schema.named[name] for name in self.condition)

    @cached_property
    def written(self) -> tuple[Column, ...]:
        """The columns that the model writes, in the schema's order."""
        return tuple(c for c in self.schema.learned if c.name not in self.condition)

    @property
    def texts(self) -> tuple[Text, ...]:
        """Those of free text."""
        return tuple(column for column in self.written if isinstance(column, Text))

    def prompt(self, row: Mapping[str, Any]) -> str:
        """Returns what the model reads of a row: at least the bracket that opens it."""
        parts = [self._name(c) + c.spell(row[c.name]) + "," for c in self.given]
        return self._brackets[0] + "".join(parts)

    def target(self, row: Mapping[str, Any]) -> str:
        """Returns what the model writes after it."""
        spelled = (column.spell(row[column.name]) for column in self.written)
        pairs = zip(self.literals, [*spelled, ""], strict=True)
        return "".join(before + value for before, value in pairs)

    def read(self, prompt: str, target: str) -> Row | None:
        """Returns the row that both texts are, in the schema's order; None where they are none."""
        try:
            found = json.loads(prompt + target.removeprefix(" "), parse_float=Decimal)
        except (ValueError, RecursionError):
            return None
        columns = (*self.given, *self.written)
        if isinstance(found, list) and len(found) == len(columns):
            found = {c.name: value for c, value in zip(columns, found, strict=True)}
        if not isinstance(found, dict) or [*found] != [column.name for column in columns]:
            return None
        try:
            return {c.name: c.parse(found[c.name]) for c in self.schema.learned}
        except Misfit:
            return None

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """What stands before each column that is written, and after the last one."""
        names = [("," if at else "") + self._name(c) for at, c in enumerate(self.written)]
        return (*names, self._brackets[1])

    def json_weights(self, of_text: float) -> tuple[float, ...]:
        """Returns what the stretches of a target count in its loss, names and values by turns.

        >>> from dpft.synthesis.columns import column_of
        >>> columns = (column_of("age", {"type": "integer", "minimum": 1, "maximum": 9}),
        ...            column_of("note", {"type": "text", "max_tokens": 9}))
        >>> RowFormat(schema=Schema(columns=columns)).json_weights(2.0)
        (1.0, 1.0, 1.0, 2.0)
        >>> RowFormat(schema=Schema(columns=columns), form="array").json_weights(2.0)
        (1.0, 2.0)
        """
        values = [of_text if isinstance(column, Text) else 1.0 for column in self.written]
        if self.form == ARRAY:
            return tuple(values)
        return tuple(weight for value in values for weight in (1.0, value))

    @property
    def pattern(self) -> str:
        """A regular expression of every target.

        Some tokenizers begin each text with a blank, which may stand first.
        """
        values = [column.pattern for column in self.written] + [""]
        pairs = zip(self.literals, values, strict=True)
        return " ?" + "".join(literal(before) + value for before, value in pairs)

    def cut(self, row: Row, tokenizer: Tokenizer) -> Row:
        """Returns a row whose texts have at most ``max_tokens`` tokens, as they stand in a target.

        A text that is too long loses its end; what is cut depends on the row alone.
        """
        cut = {
            column.name: _shortened(row[column.name], column, tokenizer) for column in self.texts
        }
        return row | cut

    def longest(self, tokenizer: Tokenizer) -> tuple[int, int]:
        """Returns the most tokens of a prompt and of a target; both are public.

        A value may be written in other tokens than the fewest, so there is room for some more.
        """
        prompt = self._brackets[0] + "".join(self._name(c) + c.longest + "," for c in self.given)
        spelled = [column.longest for column in self.written] + [""]
        target = "".join(a + b for a, b in zip(self.literals, spelled, strict=True))
        texts = sum(text.room + SLACK for text in self.texts)
        values = len(self.written) - len(self.texts)
        return count(prompt, tokenizer), count(target, tokenizer) + texts + SLACK * values

    def _name(self, column: Column) -> str:
        return "" if self.form == ARRAY else json.dumps(column.name, ensure_ascii=False) + ":"

    @property
    def _brackets(self) -> tuple[str, str]:
        return ("[", "]") if self.form == ARRAY else ("{", "}")


SLACK = 4
"""Tokens for a value beyond those that it takes by itself."""


def count(text: str, tokenizer: Tokenizer) -> int:
    """Returns how many tokens a text has."""
    return len(_ids(text, tokenizer))


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    found = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
    return list(found["input_ids"])


def _shortened(value: Any, column: Text, tokenizer: Tokenizer) -> Any:
    """Returns a text cut to its room, as it stands between quotes."""
    if value is None:
        return None
    # Few tokens are shorter than a letter's escape, so most texts are known to fit by their length.
    if 6 * len(value) <= column.room:
        return value
    low, high = 0, len(value)
    if count(column.spell(value)[1:-1], tokenizer) <= column.room:
        return value
    while high - low > 1:
        middle = (low + high) // 2
        fits = count(column.spell(value[:middle])[1:-1], tokenizer) <= column.room
        low, high = (middle, high) if fits else (low, middle)
    return value[:low]


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuses a tokenizer that cannot write what a row may hold.

    Raises:
        InputError: It loses letters, blanks or signs.
    """
    probe = '{"a":"é  \\n\\"東","b":-1.50,"c":null}'
    ids = _ids(probe, tokenizer)
    back = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if str(back).removeprefix(" ") != probe:
        raise InputError(
            "model must have a tokenizer that writes every text as it is, got one that loses some"
            ' of {"a":"é"}; choose a model that writes, such as model=gpt2.'
        )
