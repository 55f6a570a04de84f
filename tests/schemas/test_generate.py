"""What a schema says is what the record's reader does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dpft.records.form import (
    OTHER_KEYS,
    Count,
    Limits,
    Misfit,
    Part,
    Rule,
    Ruled,
    Versioned,
    named,
    null,
    parse,
)
from dpft.schemas.generate import make_schema


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A part."""

    least: Count = named("0.01")
    """The least."""


@dataclass(frozen=True, kw_only=True)
class Bound(Ruled):
    """A base with a rule of its own."""

    RULES = (Rule(when=Part(requires=("one",)), then=Part(values={"number": 1})),)


@dataclass(frozen=True, kw_only=True)
class Row(Bound, Versioned):
    """A row."""

    RULES = (Rule(when=Part(values={"name": "b"}), then=Part(requires=("one",))),)
    name: Annotated[str, Limits(choices=("a", "b"))]
    """Its name."""
    number: int | None = null()
    """A number."""
    one: Inner | None = None
    """A part."""
    others: Annotated[Mapping[str, float | str], OTHER_KEYS]
    """Anything."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two parts."""

    first: Inner
    """One."""
    second: Inner | None
    """Another."""
    items: Annotated[tuple[float, ...], Limits(min_items=1)]
    """Numbers."""


SCHEMA = make_schema(Pair | Row, title="A file", description="Either.")
KIND: Any = Pair | Row
VALUES = st.sampled_from(
    [None, True, 0, 1, -1, 1.5, "a", "c", [], [1], [True], ["x"], {}, {"0.01": 1}, {"0.01": -1}]
)
KEYS = st.sampled_from(
    ["schema_version", "name", "number", "one", "first", "second", "items", "more"]
)


def test_cases_are_told_apart_and_what_stands_twice_is_a_definition() -> None:
    assert SCHEMA["if"] == {"required": ["first"]} and SCHEMA["then"] == {"$ref": "#/$defs/pair"}
    assert list(SCHEMA["$defs"]) == ["pair", "inner", "row"]
    row = SCHEMA["$defs"]["row"]
    assert row["required"] == ["schema_version", "name", "number"]
    assert row["properties"]["name"] == {
        "type": "string",
        "enum": ["a", "b"],
        "description": "Its name.",
    }
    assert row["properties"]["number"] == {"type": ["integer", "null"], "description": "A number."}
    assert [each["if"].keys() for each in row["allOf"]] == [{"properties"}, {"required"}]
    assert set(row["additionalProperties"]["type"]) == {"number", "string"}
    assert SCHEMA["$defs"]["inner"]["properties"]["0.01"]["minimum"] == 0


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_the_schema_takes_what_the_reader_takes(content: dict[str, Any]) -> None:
    wanted = {"first": {"0.01": 1}, "second": None, "items": [1]}
    row = {"schema_version": 1, "name": "a", "number": 1}
    for value in (content, wanted | content, row | content, row | {"name": "b"} | content):
        try:
            parse(value, KIND)
        except Misfit:
            read = False
        else:
            read = True
        # 1.0 is a whole number to JSON Schema, and true is none to either.
        assert Draft202012Validator(SCHEMA).is_valid(value) == read, value


def test_a_union_without_a_key_of_its_own_has_no_schema() -> None:
    with pytest.raises(TypeError, match="needs a key of its own"):
        make_schema(Versioned | Row, title="A file", description="Either.")
