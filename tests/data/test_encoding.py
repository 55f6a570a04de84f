"""Rows made together are those that ``tokenize`` makes one by one."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dpft.data import tokenization
from dpft.data.batches import TextLayout
from dpft.data.encoding import TextEncoding, tokenize_together
from dpft.data.tokenization import has_plain_call, token_ids, tokenize
from dpft.kinds import CAUSAL, SEQ2SEQ
from dpft.models.source import EMBEDDED_MODEL
from dpft.tasks.base import Example
from tests.data.conftest import letter_tokenizer
from tests.models.small import blank_words, wordpiece

RECORD = Example(prompt="the long film :", target="a great film", group="1", separator=" :")
END = 1


def text(kind: str, *, max_length: int = 16) -> TextEncoding:
    tokenizer = blank_words(closes=kind == SEQ2SEQ)
    return TextEncoding(tokenizer=tokenizer, layout=TextLayout(kind=kind), max_length=max_length)


def words(made: TextEncoding, ids: list[int]) -> str:
    return made.tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_a_causal_model_reads_prompt_and_target_in_one_row():
    made = text("causal")
    assert made.rows([RECORD]) == tokenize([RECORD], made.tokenizer, max_length=16)


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


@settings(deadline=None, max_examples=300)
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


@pytest.mark.parametrize("kept", [["b", "a", "b"], []])
def test_equal_texts_are_read_once(monkeypatch, kept):
    read: list[str] = []

    def fast(texts, tokenizer):
        read.extend(texts)
        return [[1]] * len(texts)

    monkeypatch.setattr(tokenization, "_fast_ids", fast)
    assert token_ids(kept, TOKENIZERS[0]) == [[1]] * len(kept)
    assert read == list(dict.fromkeys(kept))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_texts_are_read_a_few_at_a_time_and_come_out_the_same(monkeypatch, size):
    class Watched:
        def __init__(self, backend):
            self._backend, self.sizes = backend, []

        def __getattr__(self, name):
            return getattr(self._backend, name)

        def encode_batch_fast(self, texts, **settings):
            self.sizes.append(len(texts))
            return self._backend.encode_batch_fast(texts, **settings)

    texts = ["abc", "a", "xyz", "b", "c", "ab", "za"]
    whole = token_ids(texts, TOKENIZERS[0])
    watched = Watched(TOKENIZERS[0].backend_tokenizer)
    monkeypatch.setattr(tokenization, "AT_ONCE", size)
    monkeypatch.setattr(type(TOKENIZERS[0]), "backend_tokenizer", watched)
    assert token_ids(texts, TOKENIZERS[0]) == whole
    assert max(watched.sizes) == size and sum(watched.sizes) == len(texts)
