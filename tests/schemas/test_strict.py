"""Every schema is one, says what each key is, and takes no key that it does not know."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dpft.errors import InputError
from dpft.schemas import names, path_of, schema


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
