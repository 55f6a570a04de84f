"""Rows to text and back: over all of Unicode, in both forms, and nothing else is read."""

import datetime
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dpft.errors import InputError
from dpft.models.source import EMBEDDED_MODEL
from dpft.synthesis.rows import RowFormat, check_tokenizer, count
from dpft.synthesis.schema import schema_of

VALUES = ["Rome", "O/s(l)o", 3, '"', "\\", "null", "東京 🎉", "a.b*c-d~e&f#"]
SCHEMA = schema_of(
    {
        "columns": {
            "city": {"type": "category", "values": VALUES, "missing": True},
            "age": {"type": "integer", "minimum": -5, "maximum": 120, "missing": True},
            "price": {"type": "decimal", "minimum": "-1.5", "maximum": 100, "step": 0.25},
            "day": {"type": "date", "minimum": "1999-12-30", "maximum": "2004-03-01"},
            'odd "name"\n': {"type": "boolean", "missing": True},
            "note": {"type": "text", "max_tokens": 10, "missing": True},
            "more": {"type": "text", "max_tokens": 5},
        }
    }
)
ROWS = st.fixed_dictionaries(
    {
        "city": st.sampled_from([*VALUES, None]),
        "age": st.integers(-5, 120) | st.none(),
        "price": st.integers(-6, 400).map(lambda n: Decimal(n) / 4),
        "day": st.dates(datetime.date(1999, 12, 30), datetime.date(2004, 3, 1)),
        'odd "name"\n': st.booleans() | st.none(),
        "note": st.text(min_size=1) | st.none(),
        "more": st.text(),
    }
)
FORMATS = [
    RowFormat(schema=SCHEMA, condition=condition, form=form)
    for condition in ((), ("city", 'odd "name"\n'))
    for form in ("object", "array")
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


@pytest.mark.parametrize("rows", FORMATS)
@settings(max_examples=40)
@given(ROWS)
def test_a_row_is_read_back_as_it_was(rows: RowFormat, row: dict[str, Any]) -> None:
    """Texts hold any letters: quotes, braces, marks of the form, control characters, none."""
    prompt, target = rows.prompt(row), rows.target(row)
    assert rows.read(prompt, target) == row
    assert re.fullmatch(rows.pattern, target)
    assert re.fullmatch(rows.pattern, f" {target}"), "some tokenizers begin with a blank"


@pytest.mark.parametrize("rows", FORMATS)
@settings(max_examples=40)
@given(ROWS, st.data())
def test_what_is_no_row_is_read_as_none(
    rows: RowFormat, row: dict[str, Any], data: st.DataObject
) -> None:
    prompt, target = rows.prompt(row), rows.target(row)
    at = data.draw(st.integers(0, len(target) - 1))
    assert rows.read(prompt, target[:at]) is None
    assert rows.read(prompt, f"{target},") is None
    assert not re.fullmatch(rows.pattern, target[:at])


def test_a_value_out_of_its_range_is_no_row() -> None:
    rows = RowFormat(schema=schema_of({"columns": {"age": {"type": "integer", "minimum": 18,
                                                           "maximum": 99}}}))  # fmt: skip
    assert rows.read("{", '"age":42}') == {"age": 42}
    for text in (
        '"age":17}',
        '"age":100}',
        '"age":"x"}',
        '"age":null}',
        '"old":42}',
        '"age":42.5}',
    ):
        assert rows.read("{", text) is None
        assert not re.fullmatch(rows.pattern, text)


@given(st.text())
def test_a_text_is_cut_to_its_room_and_one_that_fits_is_left(tokenizer: Any, text: str) -> None:
    rows, row = FORMATS[0], {"note": text, "more": ""}
    cut = rows.cut(row, tokenizer)["note"]
    column = SCHEMA.named["note"]
    spelled = count(column.spell(text)[1:-1], tokenizer)
    assert text.startswith(cut)
    assert count(column.spell(cut)[1:-1], tokenizer) <= 10
    assert cut == text or spelled > 10


def test_a_condition_of_all_columns_leaves_nothing_to_write() -> None:
    schema = schema_of({"columns": {"a": {"type": "boolean"}}})
    with pytest.raises(InputError, match="leave a column"):
        RowFormat(schema=schema, condition=("a",))
    with pytest.raises(InputError, match="form must be"):
        RowFormat(schema=schema, form="xml")


def test_a_tokenizer_that_loses_letters_is_refused(tokenizer: Any) -> None:
    check_tokenizer(tokenizer)

    class Lossy:
        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text.lower()]}

        def decode(self, token_ids: list[int], **_: Any) -> str:
            return "".join(chr(token) for token in token_ids if token < 128)

    with pytest.raises(InputError, match="choose a model that writes"):
        check_tokenizer(Lossy())
