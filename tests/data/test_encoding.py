"""Rows made together are those that ``tokenize`` makes one by one."""

import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dpft.constants import CAUSAL, CLASSES, MASKED, SCORE, SEQ2SEQ
from dpft.data import tokenization
from dpft.data.batches import TextLayout
from dpft.data.encoding import (
    TextEncoding,
    TokenEncoding,
    TokenRows,
    fingerprint,
    tokenize_together,
)
from dpft.data.tokenization import TokenizedExample, has_plain_call, token_ids, tokenize
from dpft.models.source import EMBEDDED_MODEL
from dpft.tasks.base import Example, LabeledExample
from tests.data import test_chat, test_encoding
from tests.data import test_classification_rows as heads
from tests.data.conftest import letter_tokenizer
from tests.models.small import blank_words, wordpiece

RECORD = Example(prompt="the long film :", target="a great film", group="1", separator=" :")
END = 1


def text(kind: str, *, max_length: int = 16) -> TextEncoding:
    tokenizer = blank_words(closes=kind == SEQ2SEQ)
    return TextEncoding(tokenizer=tokenizer, layout=TextLayout(kind=kind), max_length=max_length)


def words(made: TextEncoding, ids: list[int]) -> str:
    return made.tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_a_seq2seq_model_reads_the_prompt_and_learns_the_target_both_closed():
    made = text(SEQ2SEQ)
    (row,) = made.rows([RECORD])
    assert (words(made, row.input_ids), row.input_ids[-1]) == ("the long film :", END)
    assert (words(made, row.labels), row.labels[-1]) == ("a great film", END)
    assert min(row.labels) >= 0


@pytest.mark.parametrize("length", [2, 3, 4])
def test_prompt_and_target_of_a_seq2seq_model_are_cut_apart_and_stay_closed(length):
    made = text(SEQ2SEQ, max_length=length)
    long = Example(prompt="film " * 9 + ":", target="song " * 9, group="1", separator=" :")
    (row,) = made.rows([long])
    assert len(row.input_ids) == len(row.labels) == length
    assert row.input_ids[-1] == row.labels[-1] == END
    assert words(made, row.input_ids).endswith(":")


@pytest.mark.parametrize("kind", ["causal", SEQ2SEQ])
def test_the_prompt_before_writing_is_the_one_of_training(kind):
    made = text(kind)
    (row,) = made.rows([RECORD])
    (prompt,) = made.prompts([RECORD], max_length=20, max_new_tokens=4)
    assert row.input_ids[: len(prompt)] == prompt


@pytest.mark.parametrize(("length", "truncated"), [(5, False), (4, True)])
def test_a_seq2seq_row_knows_whether_its_source_or_its_target_was_cut(length, truncated):
    source = Example(prompt="a b c :", target="a", group="1", separator=" :")
    target = Example(prompt="a :", target="a b c d", group="2", separator=" :")
    rows = text(SEQ2SEQ, max_length=length).rows([source, target, source])
    assert [len(row.input_ids) for row in rows] == [length, 3, length]
    assert [row.truncated for row in rows] == [truncated] * 3


def test_an_empty_prompt_of_a_seq2seq_model_is_its_end():
    (row,) = text(SEQ2SEQ).rows([Example(prompt="", target="ab", group="")])
    assert row.input_ids == [END]
    assert row.labels[-1] == END


def test_an_empty_target_has_no_label():
    example = Example(prompt="ab", target="", group="")
    for kind in (CAUSAL, SEQ2SEQ):
        (row,) = text(kind).rows([example])
        assert set(row.labels) == {-100}


GPT2 = Path(os.environ.get("DPFT_GPT2_DIR", Path(__file__).parents[3] / "shared/models/gpt2"))
TEXTS = ("", "a", "abc", "a<you>b", "<end>", "xyz" * 5)
ODD = ["", " ", "Über alles 😀\n\n", "<|endoftext|>", "a  b\tc", "[MASK] </s> <pad>", "the film"]
TEXT, FLAG = st.sampled_from(TEXTS), st.booleans()


def opened(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The tokenizer with a start token before every text."""
    tokenizer.add_special_tokens({"bos_token": "<start>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", tokenizer.bos_token_id)]
    )
    return tokenizer


TOKENIZERS = [letter_tokenizer(), opened(letter_tokenizer())]
for each in TOKENIZERS:
    each.add_special_tokens({"additional_special_tokens": ["<you>"]})


@st.composite
def examples(draw: st.DrawFn) -> Example:
    lead, record, separator = draw(TEXT), draw(TEXT), draw(st.sampled_from(("", "\n")))
    return Example(
        prompt=lead + record + separator,
        target=draw(TEXT),
        group="",
        lead=lead,
        separator=separator,
        cut_start=draw(FLAG),
        cut_target_end=draw(FLAG),
        after_start=draw(FLAG),
        learns_prompt=draw(FLAG),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(examples(), min_size=1, max_size=6),
    st.integers(2, 24),
    st.sampled_from(TOKENIZERS),
    st.sampled_from(((), ("<you>",))),
)
def test_rows_made_together_are_those_made_one_by_one(records, max_length, tokenizer, special):
    rows = tokenize(records, tokenizer, max_length=max_length, special_tokens=special)
    together = tokenize_together(records, tokenizer, max_length=max_length, special_tokens=special)
    assert [together[at] for at in range(len(together))] == rows
    assert together.has_label.tolist() == [row.has_label for row in rows]


def tokenizers(folder: Path) -> list[PreTrainedTokenizerBase]:
    made = [
        wordpiece(folder),
        blank_words(closes=True),
        AutoTokenizer.from_pretrained(EMBEDDED_MODEL),
    ]
    return [*made, *([AutoTokenizer.from_pretrained(GPT2)] if GPT2.is_dir() else [])]


@pytest.mark.slow
def test_a_fast_tokenizers_own_batches_have_the_ids_of_its_call(tmp_path):
    for tokenizer in tokenizers(tmp_path / "wordpiece"):
        assert has_plain_call(tokenizer)
        tokenizer.backend_tokenizer.enable_truncation(1)  # left by whoever read before
        tokenizer.backend_tokenizer.enable_padding(length=9)
        found = token_ids(ODD, tokenizer)
        called = tokenizer(ODD, add_special_tokens=False, split_special_tokens=True, verbose=False)
        assert found == called["input_ids"]


def test_a_tokenizer_with_a_call_of_its_own_is_called(monkeypatch):
    class Shouting(PreTrainedTokenizerFast):
        def __call__(self, text, **settings):
            return super().__call__([each.upper() for each in text], **settings)

    shouting = Shouting(tokenizer_object=letter_tokenizer().backend_tokenizer, eos_token="<end>")
    monkeypatch.setattr(tokenization, "_fast_ids", None)
    assert not has_plain_call(shouting)
    assert token_ids(["abc"], shouting) == [[shouting.convert_tokens_to_ids(x) for x in "ABC"]]


@pytest.mark.parametrize("size", [1, 3])
def test_texts_are_read_a_few_at_a_time_and_come_out_the_same(monkeypatch, size):
    texts = ["abc", "a", "xyz", "a", "c", "ab", "za"]
    whole = token_ids(texts, TOKENIZERS[0])
    monkeypatch.setattr(tokenization, "AT_ONCE", size)
    assert token_ids(texts, TOKENIZERS[0]) == whole


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
    TokenizedExample(input_ids=[2**16 - 1, 2**16, 250_000], labels=[-100, -100, 250_000]),
]
TEXTS_TOKEN_ROWS = [
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
        rows[11]


def test_what_is_asked_of_all_rows_is_what_each_says() -> None:
    rows = TokenRows(ROWS)
    assert rows.lengths.tolist() == [len(row.input_ids) for row in ROWS]
    assert rows.has_label.tolist() == [row.has_label for row in ROWS]
    assert rows.truncated.tolist() == [row.truncated for row in ROWS]
    assert [len(column) for column in (TokenRows().lengths, TokenRows().has_label)] == [0, 0]


def encodings(folder: Path) -> dict[str, tuple[TokenEncoding, Sequence[Any]]]:
    """An encoding of every kind, with records of it."""
    bert, words = wordpiece(folder), blank_words(closes=False)
    plain = test_encoding.text
    talks = [test_chat.example(), test_chat.example(test_chat.TALK[:3])]
    pair = {"template": "<S1> ? [MASK] , <S2>", "texts": 2}
    causal = {"template": "<S1> ? <S2> It was [MASK]", "texts": 2}
    return {
        "text": (plain(CAUSAL), TEXTS_TOKEN_ROWS),
        "seq2seq": (plain(SEQ2SEQ), TEXTS_TOKEN_ROWS[:4]),
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


def number_by_number(rows, units) -> str:
    """Return the fingerprint by its definition: of every list its length, then its numbers."""
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
        TokenizedExample(input_ids=[3, 2**16], labels=[-100, 2**16]),
    ]
    assert fingerprint(rows, units, KEY) == number_by_number(rows, units)
    assert fingerprint(TokenRows(rows), units, KEY) == number_by_number(rows, units)
