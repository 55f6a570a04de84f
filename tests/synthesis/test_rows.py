"""Rows to text and back: over all of Unicode, in both forms, and nothing but rows is written."""

import datetime
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dpft.models.source import EMBEDDED_MODEL
from dpft.synthesis.rows import (
    RowConstraint,
    RowFormat,
    check_tokenizer,
    compile_grammar,
    count_tokens,
)
from dpft.synthesis.schema import schema_of
from tests.rejections import rejects
from tests.slowness import slow_but

VALUES = ["Rome", "O/s(l)o", "3", '"', "\\", "null", "東京 🎉", "a.b*c-d~e&f#"]
ROOM = 10
SCHEMA = schema_of(
    {
        "columns": {
            "city": {"type": "category", "values": VALUES, "missing": True},
            "age": {"type": "integer", "minimum": -5, "maximum": 120, "missing": True},
            "price": {"type": "decimal", "minimum": "-1.5", "maximum": 100, "step": 0.25},
            "day": {"type": "date", "minimum": "1999-12-30", "maximum": "2004-03-01"},
            'odd "name"\n': {"type": "boolean", "missing": True},
            "note": {"type": "text", "max_tokens": ROOM, "missing": True},
            "more": {"type": "text", "max_tokens": 5},
        }
    }
)
DAYS = st.dates(datetime.date(1999, 12, 30), datetime.date(2004, 3, 1))
ROWS = st.fixed_dictionaries(
    {
        "city": st.sampled_from([*VALUES, None]),
        "age": st.integers(-5, 120) | st.none(),
        "price": st.integers(-6, 400).map(lambda n: n / 4),
        "day": DAYS.map(datetime.date.isoformat),
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


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_but(FORMATS[1:3], FORMATS))
@settings(max_examples=40)
@given(ROWS)
def test_a_row_is_read_back_as_it_was(rows: RowFormat, row: dict[str, Any]) -> None:
    """Texts hold any letters: quotes, braces, marks of the form, control characters, none."""
    prompt, target = rows.prompt(row), rows.target(row)
    assert rows.read(prompt, target) == row
    assert rows.read(prompt, f" {target}") == row, "some tokenizers begin with a blank"


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_but(FORMATS[1:3], FORMATS))
@settings(max_examples=40)
@given(ROWS, st.data())
def test_what_is_no_row_is_read_as_none(
    rows: RowFormat, row: dict[str, Any], data: st.DataObject
) -> None:
    prompt, target = rows.prompt(row), rows.target(row)
    at = data.draw(st.integers(0, len(target) - 1))
    assert rows.read(prompt, target[:at]) is None
    assert rows.read(prompt, f"{target},") is None


def test_the_grammar_allows_every_value_of_the_schema_and_no_other(tokenizer: Any) -> None:
    """Also at both ends of each range. This tokenizer begins each text with a blank."""
    row = {"city": None, "age": 42, "price": 2.5, "day": "2000-02-29", 'odd "name"\n': True,
           "note": 'a "é', "more": ""}  # fmt: skip
    rows = FORMATS[0]
    begun, _ = compile_grammar(rows, tokenizer)

    def allows(text: str) -> bool:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        matcher = begun.deep_copy()
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    ends = {"city": VALUES, "age": (-5, 120, None), "price": (-1.5, -0.25, 0.0, 100.0),
            "day": ("1999-12-30", "2004-03-01"), 'odd "name"\n': (True, False, None),
            "note": ("", None)}  # fmt: skip
    for name, values in ends.items():
        for value in values:
            text = rows.target({**row, name: value})
            assert allows(text), text
    target = rows.target(row)
    for part, wrong in (("42", "-6"), ("42", "121"), ("42", "042"), ("2.5", "2.505"),
                        ("2.5", "100.25"), ("2000-02-29", "2001-02-29"), ("true", "yes"),
                        ("2000-02-29", "2004-03-02"), ("null,", '"Paris",')):  # fmt: skip
        assert part in target and not allows(target.replace(part, wrong, 1)), wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("liked", "rows"),
    slow_but(
        [("torn letters", FORMATS[1])],
        product(("nothing", "torn letters", "never end"), FORMATS),
    ),
)
def test_every_text_that_a_model_writes_is_a_row_in_range(
    tokenizer: Any, rows: RowFormat, liked: str
) -> None:
    """A model that likes half letters would tear a text where its room ends."""
    grammar, size = compile_grammar(rows, tokenizer), len(tokenizer)
    likes = torch.zeros(1, size + 3)  # some models have more logits than tokens
    for text, token in tokenizer.get_vocab().items():
        likes[0, token] += 9 * (liked == "torn letters" and text[:1] in "æÃ")
        likes[0, token] -= 30 * (liked == "never end" and '"' in text)
    prompt, target = rows.longest(tokenizer)
    draw = torch.Generator().manual_seed(0)
    held = RowConstraint(grammar, 16, before=1, top_p=0.9)
    ids = torch.zeros((16, 1), dtype=torch.long)
    for _ in range(target + 1):
        scores = held(ids, likes.expand(16, -1))
        assert (scores[:, size:] == -torch.inf).all()
        ids = torch.cat([ids, torch.multinomial(scores.softmax(-1), 1, generator=draw)], 1)
    given = {"city": None, 'odd "name"\n': True}
    for row in ids[:, 1:].tolist():
        assert tokenizer.eos_token_id in row, "a row ends within its public length"
        text = tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert rows.read(rows.prompt(given), text) is not None, text


def test_columns_of_values_keep_their_distribution_and_texts_have_a_nucleus(
    tokenizer: Any,
) -> None:
    schema = schema_of({"columns": {"a": {"type": "category", "values": ["x", "y"]},
                                    "t": {"type": "text", "max_tokens": 9}}})  # fmt: skip
    rows = RowFormat(schema=schema, form="array")
    held = RowConstraint(compile_grammar(rows, tokenizer), 1, before=1, top_p=0.5)
    begun = tokenizer('"x","', add_special_tokens=False)["input_ids"]
    ids = torch.zeros((1, 1), dtype=torch.long)
    for token in begun:
        scores = held(ids, torch.zeros(1, len(tokenizer)))
        assert 1 <= torch.isfinite(scores).sum() < len(tokenizer) / 3
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    scores = held(ids, torch.arange(len(tokenizer), dtype=torch.float)[None] / len(tokenizer))
    assert len(tokenizer) / 3 < torch.isfinite(scores).sum() < 0.6 * len(tokenizer)


@given(st.text())
def test_a_text_is_cut_to_its_room_and_one_that_fits_is_left(tokenizer: Any, text: str) -> None:
    truncated = FORMATS[0].truncated({"note": text, "more": ""}, tokenizer)["note"]
    column = SCHEMA.named["note"]
    spelled = count_tokens(column.spell(text)[1:-1], tokenizer)
    assert isinstance(truncated, str) and text.startswith(truncated)
    assert count_tokens(column.spell(truncated)[1:-1], tokenizer) <= ROOM
    assert truncated == text or spelled > ROOM


def test_a_condition_of_all_columns_leaves_nothing_to_write() -> None:
    schema = schema_of({"columns": {"a": {"type": "boolean"}}})
    with rejects("condition", ["a"]):
        RowFormat(schema=schema, condition=("a",))


def test_a_tokenizer_that_loses_letters_is_refused(tokenizer: Any) -> None:
    check_tokenizer(tokenizer)

    class Lossy:
        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text.lower()]}

        def decode(self, token_ids: list[int], **_: Any) -> str:
            return "".join(chr(token) for token in token_ids if token < 128)

    with rejects("model"):
        check_tokenizer(Lossy())
