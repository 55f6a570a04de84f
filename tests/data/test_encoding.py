import pytest

from dpft.data.batches import TextLayout
from dpft.data.encoding import TextEncoding
from dpft.data.tokenization import tokenize
from dpft.kinds import CAUSAL, SEQ2SEQ
from dpft.tasks.records import Example
from tests.models.small import blank_words

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
