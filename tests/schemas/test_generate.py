"""The schemas that ship are made of the records, are strict, and say what the reader does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dpft.errors import InputError
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
from dpft.schemas import names, path_of, schema
from dpft.schemas.generate import FORMS, made_schemas, make_schema, schema_text


def test_every_schema_is_made_of_a_record() -> None:
    assert set(FORMS) == set(names())


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_schema_did_not_change_unmeant(name: str) -> None:
    """Who reads our files reads this difference before it is merged."""
    assert path_of(name).read_text(encoding="utf-8") == schema_text(made_schemas()[name]), (
        "if the change is meant: python -m dpft.schemas.generate"
    )


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


@pytest.mark.parametrize("name", names())
def test_every_schema_is_one_and_says_what_each_key_is(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert path_of(name).suffixes == [".schema", ".json"]
    silent = [place for place, part in properties(schema(name)) if not said(part)]
    assert silent == []


def properties(part: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every key of a schema with what its schema says of it."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str) or "$defs" in part:
            for name, inner in part.get("properties", {}).items():
                yield f"{place}.{name}", inner
        for name, inner in part.items():
            yield from properties(inner, f"{place}/{name}" if name != "properties" else place)


def said(part: Any) -> bool:
    return isinstance(part, dict) and ("$ref" in part or str(part.get("description"))[-1:] == ".")


@pytest.mark.parametrize("name", names())
def test_objects_take_no_other_keys(name: str) -> None:
    def loose(part: Any, place: str) -> Iterator[str]:
        if isinstance(part, dict):
            is_object = part.get("type") == "object"
            if is_object and "additionalProperties" not in part and "if" not in part:
                yield place
            for key, inner in part.items():
                yield from loose(inner, f"{place}/{key}")
        elif isinstance(part, list):
            for number, inner in enumerate(part):
                yield from loose(inner, f"{place}/{number}")

    assert list(loose(schema(name), "")) == []


def test_there_is_no_schema_of_another_name() -> None:
    with pytest.raises(InputError, match="schema must be one of account, .*, got 'privcy'"):
        schema("privcy")
