"""A record is read strictly, written with the bytes it had, and says which key is wrong."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from dpft.errors import InputError, StateError
from dpft.records.form import (
    OTHER_KEYS,
    Count,
    Delta,
    Limits,
    Misfit,
    RunId,
    Versioned,
    as_json,
    null,
    own_key,
    parse,
    read_record,
    write_record,
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    lower: float
    upper: Annotated[float, Limits(minimum=0)]


@dataclass(frozen=True, kw_only=True)
class Failed:
    error: str


@dataclass(frozen=True, kw_only=True)
class Whole(Versioned):
    run: RunId
    delta: Delta
    steps: Count
    flag: bool
    kind: Literal["a", "b"]
    found: Mapping[str, Bounds | Failed | float]
    pair: tuple[int, str]
    texts: Annotated[tuple[str, ...], Limits(min_items=1)]
    data: str | None = null()
    note: str | None = None

    def __post_init__(self) -> None:
        if self.flag and self.note is None:
            raise ValueError("a flag must have a note")


@dataclass(frozen=True, kw_only=True)
class Row:
    run: str
    columns: Annotated[Mapping[str, float | None], OTHER_KEYS]


WHOLE: dict[str, Any] = {
    "schema_version": 1,
    "run": "0" * 32,
    "delta": 1e-5,
    "steps": 3,
    "flag": False,
    "kind": "a",
    "found": {"prv": {"lower": 1, "upper": 2.5}, "pld": {"error": "no"}, "gdp": 3},
    "pair": [1, "b"],
    "texts": ["a"],
    "data": None,
}


@pytest.mark.parametrize("more", [{}, {"note": "x", "flag": True}, {"data": "d"}, {"delta": 0.5}])
def test_what_was_read_is_written_with_the_same_bytes(tmp_path: Path, more: dict[str, Any]) -> None:
    path, again = tmp_path / "whole.json", tmp_path / "again.json"
    path.write_text(json.dumps(WHOLE | more, indent=2, sort_keys=True) + "\n")
    write_record(again, read_record(path, Whole))
    assert again.read_bytes() == path.read_bytes()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"eps": 3}, "eps is no key of it"),
    "an unknown key within": (
        {"found": {"prv": {"lower": 1, "upper": 2, "mean": 1}}},
        "found.prv.mean is no key of it",
    ),
    "a missing key within": ({"found": {"prv": {"lower": 1}}}, "found.prv.upper is missing"),
    "true for a whole number": ({"steps": True}, "steps must be a whole number of at least 0, got"),
    "a number for a whole one": ({"steps": 3.0}, "steps must be a whole .*, got 3.0"),
    "a text for a number": ({"delta": "3"}, 'delta must be a number above 0 and below 1, got "3"'),
    "a number beyond its limits": ({"delta": 1}, "delta must be a number above 0 and .*, got 1"),
    "a text that does not match": ({"run": "x"}, 'run must be 32 hexadecimal digits, got "x"'),
    "a line after the text": ({"run": "0" * 32 + "\n"}, "run must be 32 hexadecimal digits"),
    "null for an absent key": ({"note": None}, "note must be text, got null"),
    "another choice": ({"kind": "c"}, 'kind must be one of "a", "b", got "c"'),
    "no number": ({"delta": float("nan")}, "delta must be .*, got NaN"),
    "an infinite number": ({"found": {"gdp": float("inf")}}, "found.gdp must be .*, got Infinity"),
    "a short list": ({"texts": []}, "texts must be a list with a length of at least 1, got a list"),
    "a long pair": ({"pair": [1, "b", 2]}, "pair must be a list of 2, got a list"),
    "an entry of another kind": ({"pair": [1, 2]}, r"pair\[1\] must be text, got 2"),
    "a list for an object": ({"found": []}, "found must be an object, got a list"),
    "what a record refuses": ({"flag": True}, "a flag must have a note"),
    "another version within": ({"schema_version": True}, "schema_version must be 1, got true"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_by_its_key(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(Misfit, match=f"^{message}"):
        parse(WHOLE | change, Whole)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_key_that_is_gone_is_named(name: str) -> None:
    with pytest.raises(Misfit, match=f"^{name} is missing$"):
        parse({key: value for key, value in WHOLE.items() if key != name}, Whole)


def test_a_file_is_blamed_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(WHOLE | {"steps": -1}))
    with pytest.raises(StateError, match=r"whole.json is damaged: steps must be .*; put it back"):
        read_record(path, Whole)
    for spoiled in ("{", "[]", "1", "{}", json.dumps(WHOLE)[:-1] + ', "steps": 1e999}'):
        path.write_text(spoiled)
        with pytest.raises(StateError, match="whole.json is damaged"):
            read_record(path, Whole)
    path.write_text(json.dumps(WHOLE | {"schema_version": 2}))
    with pytest.raises(InputError, match="whole.json must be of schema_version 1, got 2"):
        read_record(path, Whole)


def test_free_keys_stand_beside_the_others() -> None:
    content = {"run": "a", "bleu": 1, "nist": None}
    row = parse(content, Row)
    assert row == Row(run="a", columns={"bleu": 1, "nist": None})
    assert as_json(row) == content
    with pytest.raises(Misfit, match="^bleu must be a number or null, got"):
        parse(content | {"bleu": "x"}, Row)


def test_records_of_a_union_need_a_key_of_their_own() -> None:
    assert own_key(Bounds, (Failed,)) == "lower"
    with pytest.raises(TypeError, match="Failed needs a key of its own"):
        own_key(Failed, (Failed,))
