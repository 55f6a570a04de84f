"""What is public of a private table, as its owner says it: columns, rules, what cannot be.

A schema is a file that a person wrote, YAML or a JSON Schema. Everything that a synthetic table
takes from outside of the noise is in it: names, values, ranges, lengths. Nothing is filled in from
the records. Without a schema there is a draft that the data suggest: every value and range in it
was looked up in the records, so it is written into private/ and says above each column what its
owner has to ask: may everybody know this?

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

Frictionless' Table Schema and pandera were looked at: neither has a text's length in tokens, an id
that is made anew, or what cannot be, and their constraints check data where these are a promise.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from dpft.data.raw_rows import Row as SourceRow
from dpft.errors import InputError
from dpft.privacy.plan import EXAMPLE
from dpft.synthesis.columns import (
    Column,
    Flag,
    Misfit,
    Ranged,
    Value,
    column_of,
    day_of,
    is_identifier,
    number_of,
)
from dpft.tasks.templates import spelled

MARK = "# A DRAFT"
"""How a draft begins, and no schema."""
KEYS = ("columns", "rules", "impossible", "label")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
Row = dict[str, Value]
"""Name of each learned column to what it holds."""


class FaultyCell(InputError):
    """A row that is not as its schema says.

    Attributes:
        column: Where; None where a rule between columns is broken.
        fault: What is wrong, without the value.
    """

    def __init__(self, column: str | None, fault: str) -> None:
        super().__init__(f"the column {column} {fault}" if column else fault)
        self.column, self.fault = column, fault


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A comparison of a column with another, or with a value; true where one is missing."""

    text: str
    left: str
    compare: str
    right: str | None
    """The other column."""
    value: Value = None
    """What stands in its place."""

    def holds(self, row: Mapping[str, Value]) -> bool:
        """Returns whether a row keeps it."""
        one, other = row[self.left], self.value if self.right is None else row[self.right]
        return one is None or other is None or COMPARISONS[self.compare](one, other)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """A table's public side."""

    columns: tuple[Column, ...]
    """In the order in which a row is written."""
    rules: tuple[Rule, ...] = ()
    impossible: tuple[Mapping[str, Value], ...] = ()
    """Values of categorical columns that never stand in one row."""
    label: str | None = None
    """The column by whose classes a synthetic table is tried."""

    @cached_property
    def learned(self) -> tuple[Column, ...]:
        """The columns that a model learns."""
        return tuple(column for column in self.columns if column.is_learned)

    @cached_property
    def named(self) -> dict[str, Column]:
        """Every column by its name."""
        return {column.name: column for column in self.columns}

    def row(self, cells: Mapping[str, object]) -> Row:
        """Returns what a row of the file holds, in the columns that are learned.

        Raises:
            FaultyCell: It is not as the schema says; the message quotes no cell.
        """
        row: Row = {}
        for column in self.learned:
            try:
                row[column.name] = column.read(cells.get(column.name))
            except Misfit as misfit:
                raise FaultyCell(column.name, f"{misfit}") from None
        broken = self.broken(row)
        if broken is not None:
            raise FaultyCell(None, f"a row breaks the schema's {broken}")
        return row

    def mended(self, cells: Mapping[str, object]) -> Row | None:
        """Returns the row with what does not fit as missing; None where that is not allowed."""
        row: Row = {}
        for column in self.learned:
            try:
                row[column.name] = column.read(cells.get(column.name))
            except Misfit:
                if not column.missing:
                    return None
                row[column.name] = None
        return row if self.broken(row) is None else None

    def broken(self, row: Mapping[str, Value]) -> str | None:
        """Returns the rule that a row breaks, in words; None where it keeps all."""
        for rule in self.rules:
            if not rule.holds(row):
                return f"rule {rule.text}"
        for cells in self.impossible:
            if all(row[name] == value for name, value in cells.items()):
                return "list of what is impossible"
        return None

    def check_columns(self, found: Iterable[str], *, place: str) -> None:
        """Refuses data that lack a column of the schema, or have one that it does not name.

        Raises:
            InputError: They do.
        """
        there = list(found)
        needed = [column.name for column in self.learned]
        for name in needed:
            if name not in there:
                raise InputError(
                    f"the schema's column {name} must be in {place}, which has"
                    f" {', '.join(there) or 'no column'}; drop it from the schema, or add it."
                )
        for name in there:
            if name not in self.named:
                raise InputError(
                    f"the column {name} of {place} must be in the schema, so that nothing is used"
                    f" by mistake; leave it out by {name}: {{type: drop}}."
                )


def read_schema(path: Path) -> Schema:
    """Returns the schema in a file, YAML or a JSON Schema.

    Raises:
        InputError: It cannot be read, or says something that makes no sense; names the column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.startswith(MARK):
            raise InputError(
                f"{path} is a draft, made of the private records; go through it, and take its"
                " comment away when everybody may know what it says."
            )
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, _SchemaLoader)
    except InputError:
        raise
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"schema must be a file of YAML or JSON, got {path} ({reason}).") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold columns: and a line for each, got something else.")
    try:
        return schema_of(from_json_schema(content) if "properties" in content else content)
    except InputError as error:
        raise InputError(*(f"{path}: {fault}" for fault in error.faults)) from None


class _SchemaLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Rejects a key that is given twice, and keeps numbers as they are written.

    YAML 1.1 reads 00501 as the octal number 321 and 12:30 as 750, and 1.10 would become 1.1.
    """

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Return the number of a scalar, or its text if the number would be written otherwise."""
        tag = node.tag.rpartition(":")[2]
        number = getattr(super(), f"construct_yaml_{tag}")(node)
        return number if str(number) == node.value else node.value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Returns the mapping; see yaml."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"{key!r} stands twice")
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


for _tag in ("int", "float"):
    _SchemaLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _SchemaLoader.construct_number)


def schema_of(content: Mapping[str, Any]) -> Schema:
    """Returns the schema that the keys of a file spell.

    Raises:
        InputError: One makes no sense.
    """
    unknown = sorted(set(map(str, content)) - set(KEYS))
    if unknown:
        raise InputError(f"a schema has {', '.join(KEYS)}, got {unknown[0]!r}; drop it.")
    lines = content.get("columns")
    if not isinstance(lines, dict) or not lines:
        raise InputError("a schema needs columns:, a line for each, such as age: {type: integer}.")
    columns = []
    for name, says in lines.items():
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"a column's name must be a text, got {name!r}; quote it.")
        if not isinstance(says, dict):
            raise InputError(
                f"the schema's column {name} needs a type, as {name}: {{type: text, max_tokens:"
                f" 60}}, got {says!r}."
            )
        columns.append(column_of(name, says))
    schema = Schema(columns=tuple(columns))
    if not schema.learned:
        raise InputError("a schema needs a column to learn, got only id and drop.")
    label = content.get("label")
    if label is not None:
        column = schema.named.get(str(label))
        if column is None or not column.is_categorical:
            raise InputError(
                f"label must be a column of type category or boolean, got {label!r}; drop it."
            )
    return Schema(
        columns=schema.columns,
        rules=tuple(_rule(schema, each) for each in _list(content, "rules")),
        impossible=tuple(_impossible(schema, each) for each in _list(content, "impossible")),
        label=None if label is None else str(label),
    )


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    found = content.get(key) or []
    if not isinstance(found, list):
        raise InputError(f"{key} must be a list, got {found!r}.")
    return found


def _rule(schema: Schema, text: object) -> Rule:
    parts = re.split(r"\s*(>=|<=|==|!=|>|<)\s*", str(text).strip())
    learned = {column.name: column for column in schema.learned}
    if not isinstance(text, str) or len(parts) != 3 or parts[0] not in learned:
        raise InputError(
            f"a rule must compare a column with another or with a value, as discharge >= admission,"
            f" got {text!r}."
        )
    left, compare, other = parts
    ordered = compare not in ("==", "!=")
    if ordered and not isinstance(learned[left], Ranged):
        raise InputError(
            f"the rule {text} orders {left}, which is no number and no date; use == or !=."
        )
    if other in learned:
        kinds = [
            "number" if kind in ("integer", "decimal") else kind
            for kind in (learned[left].kind, learned[other].kind)
        ]
        if kinds[0] != kinds[1]:
            raise InputError(f"the rule {text} compares a {kinds[0]} with a {kinds[1]}.")
        return Rule(text=text, left=left, compare=compare, right=other)
    try:
        value = learned[left].read_present(other.strip("'\""))
    except Misfit as misfit:
        raise InputError(
            f"the rule {text} names no column after {compare}; {left} {misfit}."
        ) from None
    return Rule(text=text, left=left, compare=compare, right=None, value=value)


def _impossible(schema: Schema, cells: object) -> Mapping[str, Value]:
    if not isinstance(cells, dict) or not cells:
        raise InputError(
            "impossible must list what never stands together, as {city: Oslo, smoker: true}, got"
            f" {cells!r}."
        )
    found: dict[str, Value] = {}
    for name, cell in cells.items():
        column = schema.named.get(name)
        if column is None or not column.is_learned:
            raise InputError(f"impossible names {name!r}, which is no column that is learned.")
        try:
            found[name] = column.read(cell)
        except Misfit as misfit:
            raise InputError(f"impossible has a {name} that {misfit}.") from None
    return found


def from_json_schema(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a JSON Schema of a row says, in the keys of a schema.

    ``x-dpft`` in a property holds keys that JSON Schema lacks: ``{"type": "id"}``, max_tokens.

    Raises:
        InputError: A property is of a type that no column is.
    """
    required, properties = content.get("required", []), content["properties"]
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise InputError("a JSON Schema must have an object as properties, and a list as required.")
    columns: dict[str, Any] = {}
    for name, says in properties.items():
        if not isinstance(says, dict) or not isinstance(says.get("x-dpft", {}), dict):
            raise InputError(f"the property {name} must be an object, x-dpft too, got {says!r}.")
        if not isinstance(says.get("enum", []), list):
            raise InputError(f"the property {name} must have a list as its enum, got {says!r}.")
        line = _property(name, says)
        types = says.get("type")
        nullable = isinstance(types, list) and "null" in types
        if line.get("type") not in ("id", "drop") and (nullable or name not in required):
            line.setdefault("missing", True)
        columns[name] = line
    kept = {key: content[key] for key in KEYS[1:] if key in content}
    return {"columns": columns, **kept}


def _property(name: str, says: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(says.get("x-dpft", {}))
    types = says.get("type")
    kinds = [each for each in (types if isinstance(types, list) else [types]) if each != "null"]
    line: dict[str, Any] = {}
    if "type" in own:
        pass
    elif "enum" in says:
        line = {"type": "category", "values": [v for v in says["enum"] if v is not None]}
    elif kinds == ["boolean"]:
        line = {"type": "boolean"}
    elif kinds == ["string"] and says.get("format") == "date":
        line = {"type": "date"}
        line |= {k: says[f"format{k.title()}"] for k in _ENDS if f"format{k.title()}" in says}
    elif kinds == ["string"]:
        line = {"type": "text"}
    elif kinds in (["integer"], ["number"]):
        line = {"type": "integer" if kinds == ["integer"] else "decimal"}
        line |= {key: says[key] for key in _ENDS if key in says}
        line |= {"step": says["multipleOf"]} if "multipleOf" in says else {}
    else:
        raise InputError(
            f"the property {name} must be a string, a number, a boolean or an enum, got"
            f" {types!r}; leave it out by x-dpft: {{type: drop}}."
        )
    return line | own


_ENDS = ("minimum", "maximum")


FEW_VALUES = 50
"""Different values of a column that may be a category."""
LETTERS_OF_A_TOKEN = 3
HEAD = f"""\
{MARK}: all of it was read out of the private table, and what you leave in it becomes public.
# Go through each line and ask whether everybody may know it: take values from a code book and
# ranges from common sense, not from these records. Then save it beside the data, as
# NAME.schema.yaml, without this comment: a file that begins with it is refused.
#   type: category (values), integer and decimal (minimum, maximum, step), date (minimum, maximum),
#         boolean, text (max_tokens), id (made anew, never learned), drop (left out)
#   missing: true, where a cell may be empty
# rules: [discharge >= admission]        compared where both are there
# impossible: [{{city: Oslo, smoker: true}}]     what never stands together
# label: COLUMN                          by whose classes the synthetic table is tried
"""


def draft_schema(rows: Iterable[SourceRow], *, unit: str) -> str:
    """Returns the text of a schema for some rows.

    Args:
        rows: Of the table.
        unit: The column of the unit, which is no column to learn; or example.

    Raises:
        InputError: There are no rows, or they cannot be read.
    """
    cells: dict[str, list[object]] = {}
    count = 0
    for row in rows:
        for name, value in row.sound().items():
            cells.setdefault(name, [None] * count).append(value)
        count += 1
        for own in cells.values():
            own.extend([None] * (count - len(own)))
    if not count:
        raise InputError("data must have rows for a draft to be made of, got none.")
    lines = [HEAD, "columns:"]
    for name, found in cells.items():
        says, asks = ({"type": "id"}, "the unit") if name == unit else _guess(name, found)
        lines += [f"  # {asks}", f"  {_flow(name)}: {_flow(says)}"]
    return "\n".join(lines) + "\n"


def _guess(name: str, cells: Sequence[object]) -> tuple[dict[str, Any], str]:
    """Returns what a column seems to hold, and what its owner is to ask."""
    column = Column(name=name)
    there = [cell for cell in cells if not column.is_empty(cell)]
    missing: dict[str, Any] = {"missing": True} if len(there) < len(cells) else {}
    if not there:
        return {"type": "drop"}, "no row has a value"
    if not all(isinstance(cell, str | int | float | bool) for cell in there):
        return {"type": "drop"}, "it holds lists or objects, which no column can"
    distinct = {spelled(cell) for cell in there}
    if {str(each).lower() for each in distinct} <= set(Flag.WORDS) - {"0", "1"}:
        return {"type": "boolean", **missing}, "two values"
    numbers = _all_read(number_of, there)
    if numbers and not any(map(is_identifier, there)):
        return _numeric(numbers, missing)
    if days := _all_read(day_of, there):
        ends = {"minimum": min(days), "maximum": max(days)}
        return {"type": "date", **ends, **missing}, "the earliest and latest day of the records"
    if len(distinct) == len(there) and len(there) > 1 and _is_name_of_id(name):
        return {"type": "id"}, "each row has another value"
    if len(distinct) <= min(FEW_VALUES, max(2, len(there) // 4)):
        values = sorted(str(each) for each in distinct)
        says = {"type": "category", "values": values, **missing}
        return says, f"{len(values)} values; a rare one may name somebody"
    room = max(_num_tokens(str(cell)) for cell in there)
    return {"type": "text", "max_tokens": room, **missing}, "the longest text has about so many"


def _num_tokens(text: str) -> int:
    """Return about how many tokens a text has; digits and other scripts have a token each."""
    others = len(re.sub(r"[A-Za-z\s]", "", text))
    return math.ceil((len(text) - others) / LETTERS_OF_A_TOKEN) + others


def _all_read(read: Callable[[object], Any], cells: Sequence[object]) -> list[Any]:
    """Returns what is read of all cells; nothing where one holds nothing of that kind."""
    try:
        return [read(cell) for cell in cells]
    except Misfit:
        return []


def _numeric(found: Sequence[Decimal], missing: dict[str, Any]) -> tuple[dict[str, Any], str]:
    asks = "the smallest and largest number of the records"
    places = max(0, *(-int(each.as_tuple().exponent) for each in found))
    if places == 0:
        whole = {"minimum": int(min(found)), "maximum": int(max(found))}
        return {"type": "integer", **whole, **missing}, asks
    places = min(places, 6)
    unit = Decimal(1).scaleb(-places)
    low = (min(found) / unit).to_integral_value("ROUND_FLOOR") * unit
    high = (max(found) / unit).to_integral_value("ROUND_CEILING") * unit
    ends = {"minimum": float(low), "maximum": float(high), "step": float(unit)}
    return {"type": "decimal", **ends, **missing}, asks


def _is_name_of_id(name: str) -> bool:
    lower = name.lower()
    return lower in (EXAMPLE, "id", "key", "uuid") or lower.endswith(("_id", "id", "number"))


def _flow(value: Any) -> str:
    """Returns a value as one line of YAML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9,
                          allow_unicode=True)  # fmt: skip
    return str(text).strip()
