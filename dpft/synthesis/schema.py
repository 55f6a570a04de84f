"""The schema of a private table, which its owner declares in a file: columns and public values.

    columns:
      city: {type: category, values: [Rome, Oslo]}
      age: {type: integer, minimum: 18, maximum: 99}
      admission: {type: date, minimum: 2020-01-01, maximum: 2024-12-31}
      discharge: {type: date, minimum: 2020-01-01, maximum: 2024-12-31, missing: true}
      note: {type: text, max_tokens: 60}
      customer_id: {type: id}
    rules: [discharge >= admission]
    impossible: [{city: Oslo, age: 99}]
    label: city

A column validates the cells of a file, writes each value as JSON in exactly one way, and has a JSON
Schema. From the JSON Schema, llguidance derives the texts that a model may generate. Nothing is
read from the records.
"""

import datetime
import json
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from dpft.errors import InputError
from dpft.tasks.base import is_unicode
from dpft.tasks.templates import spelled

Value = str | int | float | bool | None
"""The content of a valid cell; a date is YYYY-MM-DD, and a missing cell is None."""
Row = dict[str, Value]
"""The value of each learned column, by the name of the column."""
KINDS = {
    "category": ("values", "missing"),
    "integer": ("minimum", "maximum", "step", "missing"),
    "decimal": ("minimum", "maximum", "step", "missing"),
    "date": ("minimum", "maximum", "missing"),
    "boolean": ("missing",),
    "text": ("max_tokens", "missing"),
    "id": (),
    "drop": (),
}
"""The values of ``type:``, and the other keys that each type accepts."""
TEXT, DATE, ID, NUMBERS = "text", "date", "id", ("integer", "decimal")
FLAGS = dict.fromkeys(("true", "yes", "1", "t", "y"), True) | dict.fromkeys(
    ("false", "no", "0", "f", "n"), False
)
MOST_DIGITS, MOST_VALUES, MOST_DAYS = 15, 10_000, 100_000
"""Limits: digits of a number, which float64 represents exactly; values of a category; days of a
range."""
MARK = "# A DRAFT"
"""The first line of a draft. A file that begins with it is rejected as a schema."""
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


class Misfit(ValueError):
    """Error for a cell that its column does not allow, or for an invalid column.

    The message quotes no cell.
    """


class FaultyCell(InputError):
    """Error for a row that its schema does not allow; the key is a column, if known.

    The message quotes no cell.
    """


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; see ``column_of``.

    Attributes:
        name: The name in the file.
        kind: One of ``KINDS``. In synthetic rows, an id column is numbered 1, 2, 3, and a drop
            column is omitted.
        missing: Whether a cell may be empty.
        values: The values of a category, as text.
        minimum: The smallest value of a range: a Decimal, or a date as text.
        maximum: The largest value.
        step: The distance between two neighboring numbers, counted from the minimum.
        max_tokens: Number of tokens to which a text is cut.
    """

    name: str
    kind: str
    missing: bool = False
    values: tuple[str, ...] = ()
    minimum: Any = None
    maximum: Any = None
    step: Any = None
    max_tokens: int = 0

    @property
    def is_learned(self) -> bool:
        """Whether the model learns and writes the column."""
        return self.kind not in (ID, "drop")

    @cached_property
    def _allowed(self) -> frozenset[str]:
        return frozenset(self.values)

    @cached_property
    def options(self) -> tuple[Value, ...]:
        """All values of a category or boolean, with None if cells may be missing; else empty."""
        options: tuple[Value, ...] = (True, False) if self.kind == "boolean" else self.values
        return (*options, None) if options and self.missing else options

    @cached_property
    def places(self) -> int:
        """Number of decimals of every number."""
        exponents = (
            int(number.normalize().as_tuple().exponent) for number in (self.minimum, self.step)
        )
        return max(0, *(-exponent for exponent in exponents))

    def read(self, cell: object) -> Value:
        """Return the value of a cell of a file; raise Misfit for an invalid cell."""
        text = cell_text(cell)
        # In a text column whose cells may not be missing, an empty text is a valid text.
        is_empty = self.missing and not text if self.kind == TEXT else not (text or "").strip()
        if text is not None and not is_empty:
            return self.parse(text if self.kind == TEXT else text.strip())
        if not self.missing:
            raise Misfit("is missing, which the schema allows only with missing: true")
        return None

    def parse(self, text: str) -> Value:
        """Return the value of a text that is not missing; raise Misfit for an invalid text."""
        if self.kind == TEXT:
            if not is_unicode(text):
                raise Misfit("must be valid Unicode")
            return text
        if self.kind == "boolean":
            if text.lower() not in FLAGS:
                raise Misfit("must be true or false (or yes and no, or 1 and 0)")
            return FLAGS[text.lower()]
        if self.kind == "category":
            if text not in self._allowed:
                raise Misfit(f"must be one of the {len(self.values)} values that the schema lists")
            return text
        if self.kind in NUMBERS and re.match(r"[+-]?0\d", text):
            raise Misfit(
                "has a leading zero, which a number would lose (make the column a category or text)"
            )
        value: Any = day_of(text) if self.kind == DATE else number_of(text)
        if not self.minimum <= value <= self.maximum:
            raise Misfit(f"must be from {self.minimum} to {self.maximum}")
        if self.kind == DATE:
            return str(value)
        if self.kind == "integer" and value % 1:
            raise Misfit("must be a whole number")
        steps = ((value - self.minimum) / self.step).quantize(Decimal(1), ROUND_HALF_EVEN)
        nearest = self.minimum + steps * self.step
        return int(nearest) if self.kind == "integer" else float(nearest)

    def spell(self, value: Value) -> str:
        """Return a value as JSON; numbers have no trailing zeros, as llguidance requires."""
        if value is not None and self.kind in NUMBERS:
            text = f"{value:.{self.places}f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        return json.dumps(value, ensure_ascii=False)

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the values, except for texts; it allows numbers between steps too."""
        schema: dict[str, Any] = {"enum": [option for option in self.options if option is not None]}
        if self.kind == DATE:
            first, last = int(self.number(self.minimum)), int(self.number(self.maximum))
            days = map(datetime.date.fromordinal, range(first, last + 1))
            schema = {"enum": [day.isoformat() for day in days]}
        elif self.kind == "integer":
            schema = {"type": "integer"}
            schema |= {"minimum": int(self.minimum), "maximum": int(self.maximum)}
        elif self.kind == "decimal":
            schema = {"type": "number", "multipleOf": float(Decimal(1).scaleb(-self.places))}
            schema |= {"minimum": float(self.minimum), "maximum": float(self.maximum)}
        return {"anyOf": [schema, {"type": "null"}]} if self.missing else schema

    @property
    def longest(self) -> str:
        """The longest JSON of a value, without the content of texts."""
        if self.kind == TEXT:
            return '""'
        if self.kind in NUMBERS:
            return max((f"{end:.{self.places}f}" for end in (self.minimum, self.maximum)), key=len)
        return max(map(self.spell, self.options or (self.minimum,)), key=len)

    def number(self, value: Any) -> float:
        """Return a value as a float; a date becomes the ordinal number of its day."""
        if self.kind == DATE:
            return float(datetime.date.fromisoformat(value).toordinal())
        return float(value)

    def at(self, steps: int) -> str:
        """Return, as text, the value that is ``steps`` steps above the minimum."""
        if self.kind == DATE:
            return str(datetime.date.fromisoformat(self.minimum) + datetime.timedelta(days=steps))
        return f"{self.minimum + steps * self.step:.{self.places}f}"


def cell_text(cell: object) -> str | None:
    """Return a cell of a file as text, None for a missing cell; raise Misfit for a list."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, str | datetime.date | Decimal):
        return str(cell)
    text = spelled(cell)
    if text is None:
        raise Misfit("must not contain a list or an object")
    return text


def number_of(text: str) -> Decimal:
    """Return the number in a text; raise Misfit if the text is not a number."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or "_" in text:  # Decimal reads 1_0 as 10
        raise Misfit("must be a number")
    return number


def day_of(text: str) -> str:
    """Return the date in a text as YYYY-MM-DD; raise Misfit if the text is not a date."""
    pattern = r"\d{4}-\d\d-\d\d([T ]00:00(:00(\.0+)?)?)?"
    try:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError
        return datetime.date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        raise Misfit("must be a day of the calendar, YYYY-MM-DD") from None


def column_of(name: str, line: Mapping[str, Any]) -> Column:
    """Return the column that an entry of a schema declares.

    >>> age = column_of("age", {"type": "integer", "minimum": 18, "maximum": 99})
    >>> age.read("42"), age.spell(42), age.json_schema
    (42, '42', {'type': 'integer', 'minimum': 18, 'maximum': 99})

    Raises:
        InputError: The declaration is invalid.
    """
    settings = dict(line)
    kind = str(settings.pop("type", None))
    try:
        if kind not in KINDS:
            raise Misfit(f"needs a type, one of {', '.join(KINDS)}, got {line.get('type')!r}")
        for key in settings:
            if key not in KINDS[kind]:
                allowed = ", ".join(KINDS[kind]) or "no other key"
                raise Misfit(f"has the key {key!r}, but type: {kind} takes {allowed}")
        if not isinstance(settings.get("missing", False), bool):
            raise Misfit(f"must have missing: true or false, got {settings['missing']!r}")
        if kind == "category":
            settings["values"] = _checked_values(settings.get("values"))
        elif "minimum" in KINDS[kind]:
            settings |= _checked_range(kind, settings)
        elif kind == TEXT:
            room = settings.get("max_tokens")
            if type(room) is not int or room < 1:
                raise Misfit(f"needs max_tokens of at least 1, got {room!r}")
        column = Column(name=name, kind=kind, **settings)
        if kind in NUMBERS:
            size = max(abs(column.minimum), abs(column.maximum), column.step)
            if size.adjusted() + 1 + column.places > MOST_DIGITS:
                raise Misfit(f"may have at most {MOST_DIGITS} digits, decimals included")
            if (column.maximum - column.minimum) % column.step:
                raise Misfit(f"must reach its maximum from its minimum in steps of {column.step}")
            if kind == "integer" and column.places:
                raise Misfit("must have a whole minimum and step, or the type decimal")
    except Misfit as misfit:
        raise InputError(f"the schema's column {name} {misfit}.", key=name) from None
    return column


def _checked_values(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not 0 < len(values) <= MOST_VALUES:
        raise Misfit(f"needs a list of at most {MOST_VALUES} public values, as values: [a]")
    texts = [spelled(value) for value in values]
    for value, text in zip(values, texts, strict=True):
        is_text = text and is_unicode(text) and (not isinstance(value, str) or value == text)
        if isinstance(value, bool) or not is_text:
            raise Misfit(
                f"has {value!r} in its values, which is neither text nor a number (quote it, and"
                " remove blanks around it)"
            )
    if len(set(texts)) < len(texts):
        raise Misfit("has two values that are written alike")
    return tuple(map(str, texts))


def _checked_range(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ends and the step of a range as parsed values."""
    keys = {key: settings.get(key) for key in ("minimum", "maximum")}
    if kind != DATE:
        keys["step"] = settings.get("step", "1" if kind == "integer" else "0.01")
    checked: dict[str, Any] = {}
    for key, value in keys.items():
        if value is None:
            raise Misfit(f"needs a {key}, because a range is public and is not read from the data")
        try:
            checked[key] = (day_of if kind == DATE else number_of)(str(value))
        except Misfit as misfit:
            raise Misfit(f"has a {key} that {misfit}, got {value!r}") from None
    if checked["minimum"] > checked["maximum"] or checked.get("step", 1) <= 0:
        raise Misfit("must have a minimum of at most its maximum, and a step above 0")
    if kind == DATE:
        ends = (datetime.date.fromisoformat(checked[key]) for key in ("maximum", "minimum"))
        if operator.sub(*ends).days >= MOST_DAYS:
            raise Misfit(f"may have at most {MOST_DAYS} days between minimum and maximum")
    return checked


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A comparison of a column with another column or a value; it holds if either is missing."""

    text: str
    left: str
    compare: str
    right: str | None
    """The other column; None if the column is compared with ``value``."""
    value: Value = None

    def holds(self, row: Mapping[str, Value]) -> bool:
        """Return whether a row satisfies the rule."""
        one, other = row[self.left], self.value if self.right is None else row[self.right]
        return one is None or other is None or COMPARISONS[self.compare](one, other)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The public description of a table."""

    columns: tuple[Column, ...]
    """The columns, in the order in which a row is written."""
    rules: tuple[Rule, ...] = ()
    impossible: tuple[Mapping[str, Value], ...] = ()
    """Combinations of values that no row has."""
    label: str | None = None
    """The categorical column that classifiers predict in the private report."""

    @cached_property
    def learned(self) -> tuple[Column, ...]:
        """The columns that the model learns."""
        return tuple(column for column in self.columns if column.is_learned)

    @cached_property
    def named(self) -> dict[str, Column]:
        """Every column by its name."""
        return {column.name: column for column in self.columns}

    def row(self, cells: Mapping[str, object], *, blank_invalid: bool = False) -> Row:
        """Return the learned columns of a row of a file.

        Args:
            cells: The cells of the row.
            blank_invalid: Whether an invalid cell becomes a missing cell if its column allows that.

        Raises:
            FaultyCell: The schema does not allow the row.
        """
        row: Row = {}
        for column in self.learned:
            try:
                row[column.name] = column.read(cells.get(column.name))
            except Misfit as misfit:
                if not (blank_invalid and column.missing):
                    raise FaultyCell(
                        f"the column {column.name} {misfit}", key=column.name
                    ) from None
                row[column.name] = None
        broken = self.broken(row)
        if broken is not None:
            raise FaultyCell(f"the row breaks the schema's {broken}", key=None)
        return row

    def broken(self, row: Mapping[str, Value]) -> str | None:
        """Return the name of a rule that a row breaks, or None if the row breaks no rule."""
        for rule in self.rules:
            if not rule.holds(row):
                return f"rule {rule.text}"
        if any(cells.items() <= row.items() for cells in self.impossible):
            return "list of impossible values"
        return None

    def check_columns(self, names: Iterable[str], *, place: str) -> None:
        """Reject data that lacks a learned column or has a column that is not in the schema."""
        data_columns = list(names)
        lacking = [column.name for column in self.learned if column.name not in data_columns]
        faults = [f"add {name} to the data or remove it from the schema" for name in lacking]
        faults += [
            f"omit {name} with {name}: {{type: drop}}"
            for name in data_columns
            if name not in self.named
        ]
        if faults:
            raise InputError(
                f"the schema does not have the columns of {place}: {'; '.join(faults)}.",
                key="columns",
            )


def read_schema(path: Path) -> Schema:
    """Return the schema in a YAML or JSON file.

    Raises:
        InputError: The file is not readable, is a draft, or is not a valid schema.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.load(text, _SchemaLoader)
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(
            f"schema must be a file of YAML or JSON, got {path} ({reason}).",
            key="schema",
            value=str(path),
        ) from None
    if text.startswith(MARK):
        raise InputError(
            f"{path} is a draft that was made from private records. Review it, and remove its first"
            " line if all of its contents may become public.",
            key="schema",
            value=str(path),
        )
    try:
        return schema_of(content if isinstance(content, dict) else {})
    except InputError as error:
        raise InputError(
            *(replace(fault, message=f"{path}: {fault.message}") for fault in error.faults)
        ) from None


class _SchemaLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that rejects a key that is given twice, and keeps numbers as they are written.

    YAML 1.1 reads 00501 as the octal number 321 and 12:30 as 750, and would turn 1.10 into 1.1.
    """

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Return the number of a scalar, or its text if the number is spelled differently."""
        number = getattr(super(), f"construct_yaml_{node.tag.rpartition(':')[2]}")(node)
        return number if str(number) == node.value else node.value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping whose keys are unique."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"{key!r} occurs twice")
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


for _tag in ("int", "float"):
    _SchemaLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _SchemaLoader.construct_number)


def schema_of(content: Mapping[str, Any]) -> Schema:
    """Return the schema that the keys of a file describe; raise InputError for invalid keys."""
    keys = ("columns", "rules", "impossible", "label")
    unknown = sorted(set(map(str, content)) - set(keys))
    if unknown:
        raise InputError(
            f"a schema may have {', '.join(keys)}, got {unknown[0]!r}. Remove the key.",
            key=unknown[0],
        )
    lines = content.get("columns")
    if not isinstance(lines, dict) or not lines:
        raise InputError(
            "a schema needs columns: with a line for each column, such as age: {type: boolean}.",
            key="columns",
            value=lines,
        )
    for name, line in lines.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(line, dict):
            raise InputError(
                f"the schema's column {name} needs a type, as {name}: {{type: text, max_tokens:"
                f" 60}}, got {line!r}.",
                key=str(name),
                value=line,
            )
    columns = tuple(column_of(name, line) for name, line in lines.items())
    learned = {column.name: column for column in columns if column.is_learned}
    if not learned:
        raise InputError(
            "a schema needs a column to learn, got only columns of type id and drop.", key="columns"
        )
    label = content.get("label")
    classes = [column.name for column in learned.values() if column.options]
    if label is not None and label not in classes:
        raise InputError(
            f"label must be a column of type category or boolean, got {label!r}.",
            key="label",
            value=label,
        )
    for key in ("rules", "impossible"):
        if not isinstance(content.get(key) or [], list):
            raise InputError(
                f"{key} must be a list, got {content[key]!r}.", key=key, value=content[key]
            )
    return Schema(
        columns=columns,
        rules=tuple(_rule(learned, text) for text in content.get("rules") or ()),
        impossible=tuple(_impossible(learned, cells) for cells in content.get("impossible") or ()),
        label=label,
    )


def _rule(learned: Mapping[str, Column], text: object) -> Rule:
    parts = re.split(r"\s*(>=|<=|==|!=|>|<)\s*", str(text).strip())
    if not isinstance(text, str) or len(parts) != 3 or parts[0] not in learned:
        raise InputError(
            f"a rule must compare a column with another or with a value, as discharge >= admission,"
            f" got {text!r}.",
            key="rules",
            value=text,
        )
    left, compare, other = parts
    kind = learned[left].kind
    if compare not in ("==", "!=") and kind not in (*NUMBERS, DATE):
        raise InputError(
            f"the rule {text} orders {left}, which is neither a number nor a date. Use == or !=.",
            key="rules",
            value=text,
        )
    if other in learned:
        if kind != learned[other].kind and not {kind, learned[other].kind} <= set(NUMBERS):
            raise InputError(
                f"the rule {text} compares a {kind} with a {learned[other].kind}.",
                key="rules",
                value=text,
            )
        return Rule(text=text, left=left, compare=compare, right=other)
    try:
        value = learned[left].parse(other.strip("'\""))
    except Misfit as misfit:
        raise InputError(
            f"the rule {text} must compare {left} with another column or a value, got {other}. A"
            f" value of {left} {misfit}.",
            key="rules",
            value=text,
        ) from None
    return Rule(text=text, left=left, compare=compare, right=None, value=value)


def _impossible(learned: Mapping[str, Column], cells: object) -> Mapping[str, Value]:
    try:
        if not isinstance(cells, dict) or not cells:
            raise Misfit("no cells")
        return {name: learned[name].read(cell) for name, cell in cells.items()}
    except (KeyError, Misfit) as error:
        raise InputError(
            "impossible must list values of learned columns, as {city: Oslo, smoker: true}, got"
            f" {cells!r} ({error}).",
            key="impossible",
            value=cells,
        ) from None
