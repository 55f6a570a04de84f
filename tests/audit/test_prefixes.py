"""Where a record is cut in two, for each kind of model."""

from typing import Any

import pytest

from dpft.audit.prefixes import CutRecord, cut_records
from dpft.data.collation import TextLayout
from dpft.data.encoding import TextEncoding
from dpft.kinds import CAUSAL, SEQ2SEQ, TEXT
from dpft.tasks.records import Example
from tests.models import small

PROMPT, TARGET = "it was", "the film and a great play"


def encoding(kind: str) -> TextEncoding:
    layout = TextLayout(kind=kind, answer=TEXT, pad_token_id=0, takes_position_ids=kind == CAUSAL)
    tokenizer = small.blank_words(closes=kind == SEQ2SEQ)
    return TextEncoding(tokenizer=tokenizer, layout=layout, max_length=32)


def cut(kind: str, prefix_tokens: int, example: Example, most: int = 114) -> CutRecord:
    (found,) = cut_records(
        [example], encoding(kind), prefix_tokens=prefix_tokens, continuation_tokens=most
    )
    return found


def ids(kind: str, text: str) -> tuple[int, ...]:
    found: Any = encoding(kind).tokenizer(text, add_special_tokens=False)["input_ids"]
    return tuple(found)


PAIR = Example(prompt=PROMPT, target=TARGET, group="")
PLAIN = Example(prompt="", target=TARGET, group="", cut_target_end=True)
LEARNED = Example(prompt=PROMPT, target=TARGET, group="", after_start=True, learns_prompt=True)


@pytest.mark.parametrize("prefix_tokens", [1, 2])
def test_the_whole_prompt_is_given_however_short_the_prefix(prefix_tokens: int) -> None:
    found = cut(CAUSAL, prefix_tokens, PAIR)
    assert found.beginning.read == ids(CAUSAL, PROMPT)
    assert found.continuation == ids(CAUSAL, TARGET)
    assert found.beginning.lacking == len(found.continuation)


def test_a_longer_prefix_takes_of_the_target() -> None:
    found = cut(CAUSAL, 4, PAIR)
    whole = ids(CAUSAL, PROMPT) + ids(CAUSAL, TARGET)
    assert found.beginning.read + found.continuation == whole
    assert len(found.beginning.read) == 4


def test_a_record_no_longer_than_the_prefix_gives_its_first_half() -> None:
    found = cut(CAUSAL, 512, PLAIN)
    target = ids(CAUSAL, TARGET)
    # a start token stands before a plain text, and is one of its tokens
    assert (len(found.beginning.read), len(found.continuation)) == (3, 4)
    assert found.beginning.read[1:] + found.continuation == target


def test_a_prompt_that_was_learned_may_be_cut_too() -> None:
    found = cut(CAUSAL, 2, LEARNED)
    assert found.beginning.read[1:] == ids(CAUSAL, PROMPT)[:1]
    assert found.continuation == ids(CAUSAL, PROMPT)[1:] + ids(CAUSAL, TARGET)


def test_a_continuation_has_at_most_so_many_tokens() -> None:
    assert cut(CAUSAL, 1, PAIR, most=2).continuation == ids(CAUSAL, TARGET)[:2]


@pytest.mark.parametrize(("prefix_tokens", "begun"), [(1, 0), (2, 0), (5, 3)])
def test_a_seq2seq_model_reads_the_prompt_and_has_begun_the_target(
    prefix_tokens: int, begun: int
) -> None:
    found = cut(SEQ2SEQ, prefix_tokens, PAIR)
    target = ids(SEQ2SEQ, TARGET)
    assert found.beginning.read == (*ids(SEQ2SEQ, PROMPT), 1)
    assert (found.beginning.begun, found.continuation) == (target[:begun], target[begun:])


def test_a_seq2seq_model_of_plain_texts_has_begun_them() -> None:
    found = cut(SEQ2SEQ, 2, PLAIN)
    assert (found.beginning.read, found.beginning.begun) == ((1,), ids(SEQ2SEQ, TARGET)[:2])


@pytest.mark.parametrize("kind", [CAUSAL, SEQ2SEQ])
def test_a_record_with_nothing_to_write_is_left_out(kind: str) -> None:
    empty = Example(prompt=PROMPT, target="", group="")
    assert cut_records([empty], encoding(kind), prefix_tokens=1, continuation_tokens=5) == []


def test_the_end_of_a_text_is_no_part_of_it() -> None:
    for kind in (CAUSAL, SEQ2SEQ):
        assert 1 not in cut(kind, 1, PAIR).continuation
