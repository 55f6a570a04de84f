"""Records in flat arrays are the rows that every encoding makes, bit for bit."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpft.data.encoding import TokenEncoding, TokenRows, encoded_rows, fingerprint
from dpft.data.tokenization import TokenizedExample
from dpft.kinds import CAUSAL, CLASSES, MASKED, SCORE, SEQ2SEQ
from dpft.tasks.base import Example, LabeledExample
from tests.data import test_chat, test_encoding
from tests.data import test_classification_rows as heads
from tests.models.small import blank_words, wordpiece

ROWS = [
    TokenizedExample(input_ids=[5, 6, 7], labels=[-100, 6, 7]),
    TokenizedExample(input_ids=[5], labels=[5], truncated=True),
    TokenizedExample(input_ids=[5, 6], labels=[-100, -100]),
    TokenizedExample(input_ids=[8, 9], labels=[9]),
    TokenizedExample(input_ids=[8, 9], labels=[-100]),
    TokenizedExample(input_ids=[1, 2], labels=[0.1, 0.9], answer=0),
    TokenizedExample(input_ids=[1, 2], labels=[3.5], token_type_ids=[0, 1]),
    TokenizedExample(input_ids=[1], labels=[1.0], token_type_ids=[]),
    TokenizedExample(input_ids=[5, 6, 7], labels=[5, -100, 7], answer=2, token_type_ids=[0, 0, 1]),
    TokenizedExample(input_ids=[5, 6], labels=[5, 6], answer=1),
]
TEXTS = [
    Example(prompt="a film :", target="a great film", group="1", separator=" :"),
    Example(prompt="a :", target="", group="2", separator=" :"),
    Example(prompt="", target="the song " * 20, group="3", cut_target_end=True),
    Example(prompt="film " * 30 + ":", target="long", group="4", separator=":", lead="film "),
    Example(prompt="a film :", target="a", group="5", after_start=True, learns_prompt=True),
]
LABELED = [
    LabeledExample(texts=("a film", "the song"), label=1.0),
    LabeledExample(texts=("film " * 30, ""), label=0.0),
]


def test_rows_of_every_form_come_back_as_they_were() -> None:
    rows = TokenRows(ROWS)
    assert len(rows) == len(ROWS)
    assert list(rows) == ROWS == rows[:]
    assert [rows[at] for at in (8, 0, -2)] == [ROWS[8], ROWS[0], ROWS[-2]]
    with pytest.raises(IndexError):
        rows[10]


def test_what_is_asked_of_all_rows_is_what_each_says() -> None:
    rows = TokenRows(ROWS)
    assert rows.lengths.tolist() == [len(row.input_ids) for row in ROWS]
    assert rows.has_label.tolist() == [row.has_label for row in ROWS]
    assert rows.truncated.tolist() == [row.truncated for row in ROWS]
    assert [len(column) for column in (TokenRows().lengths, TokenRows().has_label)] == [0, 0]


def test_rows_in_arrays_are_not_copied() -> None:
    rows = encoded_rows(ROWS)
    assert encoded_rows(rows) is rows


@pytest.mark.parametrize(("token", "size"), [(0, 2), (2**16 - 1, 2), (2**16, 4), (250_000, 4)])
def test_a_text_costs_what_its_tokens_need_and_its_labels_nothing(token: int, size: int) -> None:
    long = TokenizedExample(input_ids=[token] * 50, labels=[-100] * 20 + [token] * 30)
    (block,) = TokenRows([long] * 100).blocks
    arrays = [block.ids.values, block.ids.bounds, block.unlabeled, block.truncated]
    assert block.labels is None and block.types is None and block.answers is None
    assert sum(array.nbytes for array in arrays if array is not None) <= 100 * (50 * size + 16) + 8
    assert list(TokenRows([long])) == [long]


def test_a_fingerprint_does_not_tell_how_many_bytes_a_token_takes() -> None:
    rows = TokenRows([TokenizedExample(input_ids=[7, 8], labels=[-100, 8])])
    narrow = b"".join(rows.content())
    (block,) = rows.blocks
    wide = replace(block.ids, values=block.ids.values.astype(np.int32))
    assert block.ids.values.dtype == np.uint16
    rows.blocks[:] = [replace(block, ids=wide)]
    assert b"".join(rows.content()) == narrow


def encodings(folder: Path) -> dict[str, tuple[TokenEncoding, Sequence[Any]]]:
    """An encoding of every kind, with records of it."""
    bert, words = wordpiece(folder), blank_words(closes=False)
    plain = test_encoding.text
    talks = [test_chat.example(), test_chat.example(test_chat.TALK[:3])]
    pair = {"template": "<S1> ? [MASK] , <S2>", "texts": 2}
    causal = {"template": "<S1> ? <S2> It was [MASK]", "texts": 2}
    return {
        "text": (plain(CAUSAL), TEXTS),
        "seq2seq": (plain(SEQ2SEQ), TEXTS[:4]),
        "chat": (test_chat.encoding(test_chat.tokenizer(), 40), talks),
        "masked label words": (heads.label_words(bert, MASKED, **pair), LABELED),
        "causal label words": (
            heads.label_words(words, CAUSAL, **causal),
            LABELED,
        ),
        "classes": (heads.encoding(bert, answer=CLASSES), LABELED),
        "scores": (heads.encoding(bert, answer=SCORE, outputs=1), LABELED),
        "classes without types": (
            heads.encoding(words, answer=CLASSES),
            LABELED,
        ),
    }


KINDS = ("text", "seq2seq", "chat", "masked label words", "causal label words", "classes",
         "scores", "classes without types")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_encodings_records_have_the_rows_that_it_makes_of_all_at_once(
    tmp_path: Path, kind: str
) -> None:
    encoding, records = encodings(tmp_path / "wordpiece")[kind]
    together = encoding.rows(records)
    one_by_one = TokenRows(row for record in records for row in encoding.rows([record]))
    assert list(TokenRows(together)) == together == list(one_by_one)
    assert TokenRows(together).has_label.tolist() == [row.has_label for row in together]
    kinds = [[type(label) for label in row.labels] for row in together]
    assert [[type(label) for label in row.labels] for row in one_by_one] == kinds
    assert len(TokenRows(together).blocks) == 1
    assert all(np.isfinite(label) for row in together for label in row.labels)


KEY = bytes(32)
STORED = [
    TokenizedExample(input_ids=[1, 2, 3], labels=[-100, 2, 3]),
    TokenizedExample(input_ids=[4], labels=[4]),
]


def test_equal_records_have_equal_fingerprints_under_one_key_only():
    assert fingerprint(STORED, None, KEY) == fingerprint(list(STORED), None, KEY)
    assert fingerprint(STORED, None, KEY) != fingerprint(STORED, None, bytes([1]) * 32)


@pytest.mark.parametrize(
    ("rows", "units"),
    [
        (STORED[:1], None),
        (STORED[::-1], None),
        ([replace(STORED[0], labels=[-100, -100, 3]), STORED[1]], None),
        ([replace(STORED[0], token_type_ids=[0, 0, 1]), STORED[1]], None),
        (
            [
                replace(STORED[0], input_ids=[1, 2], labels=[3, -100, 2, 3]),
                STORED[1],
            ],
            None,
        ),
        (STORED, [[0, 1]]),
        (STORED, [[0], [1]]),
    ],
)
def test_any_change_of_the_records_or_their_units_shows(rows, units):
    assert fingerprint(rows, units, KEY) != fingerprint(STORED, None, KEY)


def number_by_number(rows, units) -> str:
    """Returns the fingerprint by its definition: of every list its length, then its numbers."""
    digest = hmac.new(KEY, digestmod=hashlib.sha256)
    columns = [
        column
        for row in rows
        for column in (row.input_ids, row.labels, row.token_type_ids or [], [row.answer or 0])
    ]
    for column in [*columns, *(units or [])]:
        digest.update(len(column).to_bytes(8, "big"))
        digest.update(np.asarray(column, dtype=np.float64).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("units", [None, [], [[0, 2], [], [1]]])
def test_it_is_the_hash_of_every_list_with_its_length(units):
    rows = [
        *STORED,
        TokenizedExample(input_ids=[9, 9], labels=[0.1, 0.2], answer=1),
        TokenizedExample(input_ids=[9], labels=[2], token_type_ids=[0], answer=0),
        TokenizedExample(input_ids=[3, 4], labels=[]),
    ]
    assert fingerprint(rows, units, KEY) == number_by_number(rows, units)
    assert fingerprint(TokenRows(rows), units, KEY) == number_by_number(rows, units)
