"""What an owner may say of a table, and how what makes no sense is refused."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpft.data.raw_rows import Row
from dpft.errors import InputError
from dpft.synthesis.draft import draft_schema
from dpft.synthesis.schema import TEXT, FaultyCell, read_schema, schema_of
from tests.rejections import rejects
from tests.synthesis.tables import SCHEMA, visitors


def columns(**lines: dict[str, Any]) -> dict[str, Any]:
    return {"columns": lines}


AGE = {"type": "integer", "minimum": 18, "maximum": 99}
DAY = {"type": "date", "minimum": "2020-01-01", "maximum": "2020-12-31"}
SENSELESS: dict[str, tuple[dict[str, Any], str]] = {
    "no columns": ({}, "columns"),
    "an unknown key": ({**columns(age=AGE), "lines": {}}, "lines"),
    "a line that is none": (columns(age=3), "age"),
    "no type": (columns(age={"minimum": 1}), "age"),
    "an unknown type": (columns(age={"type": "int"}), "age"),
    "a key of another type": (columns(age={**AGE, "values": [1]}), "age"),
    "no minimum": (columns(age={"type": "integer", "maximum": 3}), "age"),
    "ends in the wrong order": (columns(age={**AGE, "maximum": 3}), "age"),
    "a step past the end": (columns(age={**AGE, "step": 7}), "age"),
    "a step of 0": (columns(age={**AGE, "step": 0}), "age"),
    "a minimum that is true": (columns(age={**AGE, "minimum": True}), "age"),
    "a whole number with places": (columns(age={**AGE, "step": 0.5}), "age"),
    "more digits than are exact": (columns(age={**AGE, "maximum": 10**300}), "age"),
    "a word that YAML reads": (columns(c={"type": "category", "values": ["Rome", False]}), "c"),
    "no day": (columns(d={**DAY, "minimum": "2020-02-30"}), "d"),
    "values that are no list": (columns(c={"type": "category", "values": "ab"}), "c"),
    "equal values": (columns(c={"type": "category", "values": [1, "1"]}), "c"),
    "a blank value": (columns(c={"type": "category", "values": [" a"]}), "c"),
    "too many values": (columns(c={"type": "category", "values": [*range(50_000)]}), "c"),
    "no room": (columns(t={"type": "text"}), "t"),
    "missing that is no flag": (columns(age={**AGE, "missing": "no"}), "age"),
    "nothing to learn": (columns(a={"type": "id"}), "columns"),
    "a label that is no class": ({**columns(age=AGE), "label": "age"}, "label"),
    "a rule of no column": ({**columns(age=AGE), "rules": ["old > 3"]}, "rules"),
    "a rule of no value": ({**columns(age=AGE), "rules": ["age > old"]}, "rules"),
    "a rule of two kinds": ({**columns(age=AGE, d=DAY), "rules": ["age > d"]}, "rules"),
    "a rule that orders texts": (
        {**columns(t={"type": "text", "max_tokens": 3}), "rules": ["t > a"]},
        "rules",
    ),
    "impossible of no column": ({**columns(age=AGE), "impossible": [{"a": 1}]}, "impossible"),
    "impossible of no value": ({**columns(age=AGE), "impossible": [{"age": 3}]}, "impossible"),
}


@pytest.mark.parametrize("content, key", SENSELESS.values(), ids=SENSELESS)
def test_what_makes_no_sense_is_refused_by_its_key(content: dict[str, Any], key: str) -> None:
    with rejects(key) as faults:
        schema_of(content)
    assert len(faults) == 1


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.schema.yaml"
    path.write_text("columns:\n  age: {type: id}\n  age: {type: drop}\n")
    with rejects("schema", str(path)):
        read_schema(path)


def test_rows_are_read_as_the_schema_says() -> None:
    schema = schema_of(SCHEMA)
    row = schema.row({**visitors()[0], "age": "42.0"})
    assert row["age"] == 42 and row["smoker"] in (True, False)
    assert list(row) == ["city", "age", "smoker", "note"]


@pytest.mark.parametrize(
    "column, cell",
    [
        ("age", "17"),
        ("age", "42.5"),
        ("age", "many"),
        ("age", "NaN"),
        ("age", "2_5"),
        ("age", ""),
        ("city", "rome"),
        ("smoker", "maybe"),
        ("note", "\ud800"),
    ],
)
def test_a_cell_that_does_not_fit_is_named_and_not_quoted(column: str, cell: str) -> None:
    with rejects(column) as faults:
        schema_of(SCHEMA).row({**visitors()[0], column: cell})
    assert "rome" not in str(faults[0]) and "17" not in str(faults[0])


def test_rules_hold_between_columns() -> None:
    content = columns(a={**DAY}, b={**DAY, "missing": True})
    schema = schema_of({**content, "rules": ["b >= a", "a < 2020-06-01"]})
    days = {"a": "2020-02-01", "b": "2020-03-01"}
    assert schema.row(days)
    assert schema.row({**days, "b": ""})["b"] is None
    for wrong in ({"b": "2020-01-31"}, {"a": "2020-06-01", "b": "2020-07-01"}):
        with pytest.raises(FaultyCell):
            schema.row(days | wrong)


def test_what_does_not_fit_becomes_missing_where_that_is_allowed() -> None:
    schema = schema_of(columns(a={**AGE, "missing": True}, b=AGE))
    assert schema.row({"a": "7", "b": "20"}, blank_invalid=True) == {"a": None, "b": 20}
    with rejects("b"):
        schema.row({"a": "20", "b": "7"}, blank_invalid=True)


def test_columns_of_data_and_schema_are_the_same() -> None:
    schema = schema_of(SCHEMA)
    with rejects("columns"):
        schema.check_columns(["customer_id", "city", "age", "smoker"], place="the data")
    with rejects("columns"):
        schema.check_columns([*visitors()[0], "phone"], place="the data")
    schema.check_columns(["city", "age", "smoker", "note"], place="the data")


ODD = (None, True, 3, -1.5, float("nan"), float("inf"), 10**400, "", "x", "\n", "\ud800", [], [[]],
       [None], {}, {"type": "id"}, {"a": {"a": 1}}, {1: 2})  # fmt: skip
"""What somebody may have written in the place of anything."""
WHOLE: dict[str, Any] = {
    "columns": {
        "city": {"type": "category", "values": ["Rome", "Oslo"], "missing": True},
        "bill": {"type": "decimal", "minimum": 0, "maximum": 5, "step": 0.5},
        "age": {"type": "integer", "minimum": 18, "maximum": 99, "step": 1},
        "seen": {"type": "date", "minimum": "2020-01-01", "maximum": "2024-12-31"},
        "note": {"type": "text", "max_tokens": 9},
    },
    "rules": ["age >= 20"],
    "impossible": [{"city": "Rome"}],
    "label": "city",
}


def places(content: Any, *before: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every part of a content."""
    steps = content if isinstance(content, dict) else range(len(content))
    for step in steps:
        yield (*before, step)
        if isinstance(content[step], dict | list):
            yield from places(content[step], *before, step)


def test_whatever_stands_in_a_schema_is_read_or_refused_in_a_sentence() -> None:
    assert schema_of(WHOLE).learned
    refused = 0
    for way in places(WHOLE):
        for odd in ODD:
            changed = copy.deepcopy(WHOLE)
            part = changed
            for step in way[:-1]:
                part = part[step]
            part[way[-1]] = odd
            try:
                found = schema_of(changed)
            except InputError:
                refused += 1
            else:
                assert all(column.longest for column in found.learned)
    assert refused > 100


def test_a_draft_that_nobody_went_through_is_refused(tmp_path: Path) -> None:
    text = draft_schema([Row("row", dict(row)) for row in visitors()], unit="customer_id")
    path = tmp_path / "a.schema.yaml"
    path.write_text(text)
    with rejects("schema", str(path)):
        read_schema(path)
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("#")))
    assert read_schema(path).named["age"].kind == "integer"


def test_a_draft_is_a_schema_of_its_data() -> None:
    rows = [Row("row", dict(row)) for row in visitors()]
    text = draft_schema(rows, unit="customer_id")
    assert text.startswith("# A DRAFT") and "the schema is public" in text
    schema = schema_of(yaml.safe_load(text))
    assert {column.name: column.kind for column in schema.columns} == {
        "customer_id": "id", "city": "category", "age": "integer", "smoker": "boolean",
        "note": "category",
    }  # fmt: skip
    assert all(schema.row(row.values) for row in rows)


def test_a_draft_guesses_texts_decimals_days_and_what_is_missing() -> None:
    cells = [
        {"t": f"text number {n} of many", "d": f"{n}.25", "day": f"2020-01-{n + 1:02d}",
         "m": "" if n else "3", "list": [n], "none": None, "key_id": f"K{n}", "no": f"1_{n}"}
        for n in range(20)
    ]  # fmt: skip
    schema = schema_of(yaml.safe_load(draft_schema([Row("r", c) for c in cells], unit="example")))
    assert {column.name: column.kind for column in schema.columns} == {
        "t": "text", "d": "decimal", "day": "date", "m": "integer", "list": "drop",
        "none": "drop", "key_id": "id", "no": "text",
    }  # fmt: skip
    assert schema.named["m"].missing
    assert all(schema.row(c) for c in cells)


IDENTIFIERS = {
    "a postcode": "02116",
    "a phone number": "+493012345678",
    "the beginning of a hash": "1e5",
    "digits of another script": "٠١٢٣",
}


@pytest.mark.parametrize("cell", IDENTIFIERS.values(), ids=IDENTIFIERS)
@pytest.mark.parametrize("num_others, kind", [(1, "category"), (90, "text")])
def test_a_number_that_would_change_is_drafted_as_text_and_kept(
    cell: str, num_others: int, kind: str
) -> None:
    cells = [cell, *(str(10000 + n % num_others) for n in range(90))]
    text = draft_schema([Row("row", {"code": each}) for each in cells], unit="example")
    column = schema_of(yaml.safe_load(text)).named["code"]
    assert column.kind == kind
    for each in cells:
        assert column.parse(json.loads(column.spell(column.read(each)))) == each
    if column.kind == TEXT:
        assert column.max_tokens >= len(cell)


def test_a_long_number_of_a_jsonl_file_is_drafted_as_text() -> None:
    rows = [Row("row", {"code": 1234567890123456789 + n}) for n in range(90)]
    text = draft_schema(rows, unit="example")
    assert schema_of(yaml.safe_load(text)).named["code"].kind == "text"


NUMBERS = {
    "zero": ("0", "integer"),
    "a fraction": ("0.50", "decimal"),
    "an exponent": ("1e-05", "decimal"),
    "an exponent after a point": ("2.5E3", "integer"),
    "fifteen digits": ("123456789012345", "integer"),
}


@pytest.mark.parametrize("cell, kind", NUMBERS.values(), ids=NUMBERS)
def test_a_plain_number_is_drafted_as_a_number(cell: str, kind: str) -> None:
    text = draft_schema([Row("row", {"code": each}) for each in (cell, "7")], unit="example")
    assert schema_of(yaml.safe_load(text)).named["code"].kind == kind


@pytest.mark.parametrize("cell", ["00501", " 08028", "-01.5"])
def test_a_column_of_numbers_rejects_a_leading_zero(cell: str) -> None:
    schema = schema_of(columns(x={"type": "decimal", "minimum": -9, "maximum": 99999}))
    assert schema.row({"x": "501"})
    with rejects("x") as faults:
        schema.row({"x": cell})
    assert cell.strip() not in str(faults[0])


def test_values_of_a_schema_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.schema.yaml"
    path.write_text(
        "columns:\n"
        "  code: {type: category, values: [00501, 08028, +49, 12:30, 1.10, 7]}\n"
        "  price: {type: decimal, minimum: 0.50, maximum: 9, step: 0.1}\n"
    )
    schema = read_schema(path)
    assert schema.named["code"].options == ("00501", "08028", "+49", "12:30", "1.10", "7")
    assert schema.row({"code": "00501", "price": "0.6"})["code"] == "00501"
