"""Where a record is cut in two, or what is hidden of it, for each kind of model."""

from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dpft.audit.kinds.memorization import Memorization
from dpft.audit.prefixes import CutRow, cut_records
from dpft.data.collation import TextLayout
from dpft.data.corpus_rows import CorpusEncoding
from dpft.data.encoding import TextEncoding
from dpft.errors import InputError
from dpft.kinds import CAUSAL, MASKED, SEQ2SEQ, TEXT
from dpft.tasks.records import Example
from dpft.tokenizers.pieces import Pieces
from dpft.tokenizers.saving import save_tokenizer
from tests.models import small


def asked(**options: Any) -> dict[str, Any]:
    """Returns what ``cut_records`` is told by an audit of these options."""
    audit = Memorization(**options)
    keys = ("hidden", "prefix_tokens", "continuation_tokens")
    return {key: getattr(audit, key) for key in keys}


PROMPT, TARGET = "it was", "the film and a great play"


def encoding(kind: str) -> TextEncoding:
    layout = TextLayout(kind=kind, answer=TEXT, pad_token_id=0, takes_position_ids=kind == CAUSAL)
    tokenizer = small.blank_words(closes=kind == SEQ2SEQ)
    return TextEncoding(tokenizer=tokenizer, layout=layout, max_length=32)


def cut(kind: str, prefix_tokens: int, example: Example, most: int = 114) -> CutRow:
    made = encoding(kind)
    (found,) = cut_records([example], made, prefix_tokens=prefix_tokens, continuation_tokens=most)
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
    assert found.asked[0] == ids(CAUSAL, TARGET)
    assert found.beginning.lacking == len(found.asked[0])


def test_a_longer_prefix_takes_of_the_target() -> None:
    found = cut(CAUSAL, 4, PAIR)
    whole = ids(CAUSAL, PROMPT) + ids(CAUSAL, TARGET)
    assert found.beginning.read + found.asked[0] == whole
    assert len(found.beginning.read) == 4


def test_a_record_no_longer_than_the_prefix_gives_its_first_half() -> None:
    found = cut(CAUSAL, 512, PLAIN)
    target = ids(CAUSAL, TARGET)
    # a start token stands before a plain text, and is one of its tokens
    assert (len(found.beginning.read), len(found.asked[0])) == (3, 4)
    assert found.beginning.read[1:] + found.asked[0] == target


def test_a_prompt_that_was_learned_may_be_cut_too() -> None:
    found = cut(CAUSAL, 2, LEARNED)
    assert found.beginning.read[1:] == ids(CAUSAL, PROMPT)[:1]
    assert found.asked[0] == ids(CAUSAL, PROMPT)[1:] + ids(CAUSAL, TARGET)


def test_a_continuation_has_at_most_so_many_tokens() -> None:
    assert cut(CAUSAL, 1, PAIR, most=2).asked[0] == ids(CAUSAL, TARGET)[:2]


@pytest.mark.parametrize(("prefix_tokens", "begun"), [(1, 0), (2, 0), (5, 3)])
def test_a_seq2seq_model_reads_the_prompt_and_has_begun_the_target(
    prefix_tokens: int, begun: int
) -> None:
    found = cut(SEQ2SEQ, prefix_tokens, PAIR)
    target = ids(SEQ2SEQ, TARGET)
    assert found.beginning.read == (*ids(SEQ2SEQ, PROMPT), 1)
    assert (found.beginning.begun, found.asked[0]) == (target[:begun], target[begun:])


def test_a_seq2seq_model_of_plain_texts_has_begun_them() -> None:
    found = cut(SEQ2SEQ, 2, PLAIN)
    assert (found.beginning.read, found.beginning.begun) == ((1,), ids(SEQ2SEQ, TARGET)[:2])


@pytest.mark.parametrize("kind", [CAUSAL, SEQ2SEQ])
def test_a_record_with_nothing_to_write_is_left_out(kind: str) -> None:
    empty = Example(prompt=PROMPT, target="", group="")
    assert cut_records([empty], encoding(kind), **asked(prefix_tokens=1)) == []


def test_the_end_of_a_text_is_no_part_of_it() -> None:
    for kind in (CAUSAL, SEQ2SEQ):
        assert 1 not in cut(kind, 1, PAIR).asked[0]


LETTERS = "abcdefghij"
END = 1


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A token for each letter, sentinels, and a mask."""
    pieces = Pieces(pieces=(("▁", -9.0), *((letter, -1.0) for letter in LETTERS)))
    folder = tmp_path_factory.mktemp("letters")
    save_tokenizer(folder, pieces, algorithm="unigram", sentinels=9)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer


def corpus(tokenizer: PreTrainedTokenizerBase, kind: str, **changes: Any) -> CorpusEncoding:
    layout = TextLayout(kind=kind, answer=TEXT, pad_token_id=0)
    return CorpusEncoding(tokenizer=tokenizer, layout=layout, **{"max_length": 24, **changes})


def word(length: int) -> Example:
    """A word whose tokens are the blank's piece and ``length - 1`` letters."""
    text = (LETTERS * length)[: length - 1]
    return Example(prompt="", target=text, group=text, cut_target_end=True)


def tokens_of(tokenizer: PreTrainedTokenizerBase, length: int) -> tuple[int, ...]:
    found: Any = tokenizer(word(length).target, add_special_tokens=False)["input_ids"]
    return tuple(found)


def test_a_prefix_of_a_corpus_text_is_read_by_the_encoder_as_in_training(
    letters: PreTrainedTokenizerBase,
) -> None:
    """No end-of-text token follows it, and the decoder writes from its own first token on."""
    made = corpus(letters, SEQ2SEQ)
    for prefix_tokens, read in ((10, 10), (26, 24), (512, 24)):
        (found,) = cut_records([word(40)], made, **asked(prefix_tokens=prefix_tokens))
        whole = tokens_of(letters, 40)[: made.raw_length]
        assert found.beginning.read == whole[:read]
        assert found.beginning.begun == ()
        assert found.asked == (whole[read:],)
        assert found.written((3, 4)) == [(3, 4)]
    (row,), (short,) = made.rows([word(9)]), cut_records([word(9)], made, **asked())
    assert list(short.beginning.read) == row.input_ids, "of a short text as much as in training"
    assert [*short.asked[0], END] == row.labels


def test_a_prefix_before_a_model_of_hidden_spans_ends_as_all_that_it_reads(
    letters: PreTrainedTokenizerBase,
) -> None:
    made = corpus(letters, SEQ2SEQ, span_corruption=True)
    options = asked(hidden="continuation", prefix_tokens=10, continuation_tokens=5)
    (found,) = cut_records([word(40)], made, **options)
    whole = tokens_of(letters, 40)
    assert found.beginning.read == (*whole[:10], END)
    assert (found.asked, found.beginning.lacking) == ((whole[10:15],), 5)
    (short,) = cut_records([word(9)], made, **options | {"prefix_tokens": 512})
    assert short.beginning.read == (*tokens_of(letters, 9)[:4], END)


def test_hidden_spans_are_those_of_the_row_as_it_is_scored(
    letters: PreTrainedTokenizerBase,
) -> None:
    made = corpus(letters, SEQ2SEQ, span_corruption=True)
    (found,), (row,) = cut_records([word(26)], made, **asked()), made.rows([word(26)])
    assert list(found.beginning.read) == row.input_ids
    target = [int(label) for label in row.labels]
    assert found.beginning.lacking == len(target) - 1, "the end of the text aside"
    assert found.written(target[:-1]) == list(found.asked)
    assert sum(map(len, found.asked)) == 4, "15 % of 26"


def test_what_is_written_is_parted_by_any_sentinel_and_what_is_left_out_is_nothing(
    letters: PreTrainedTokenizerBase,
) -> None:
    made = corpus(letters, SEQ2SEQ, span_corruption=True, max_length=40)
    options = asked(continuation_tokens=2)
    (found,) = cut_records([word(40)], made, **options)
    assert sum(map(len, found.asked)) == 2
    first, second = made.sentinels[:2]
    assert found.written([9, first, 5, 6, second, 7])[0] == (5, 6)
    assert found.written([second, 7])[0] == ()
    assert found.written([]) == [()] * len(found.asked)
    assert found.written([first, 5, first, 6])[0] == (5,), "the first filling counts"


def test_a_masked_model_reads_masks_in_the_place_of_spans(letters: PreTrainedTokenizerBase) -> None:
    made = corpus(letters, MASKED)
    (found,) = cut_records([word(22)], made, **asked())
    (raw,) = made.rows_together([word(22)])
    places = [n for n, token in enumerate(found.beginning.read) if token == letters.mask_token_id]
    assert len(places) == found.beginning.lacking == sum(map(len, found.asked)) == 3
    there = [raw.input_ids[place] for place in places]
    assert found.written(there) == list(found.asked)
    kept = [n for n in range(len(raw.input_ids)) if n not in places]
    assert all(found.beginning.read[n] == raw.input_ids[n] for n in kept)


def test_each_chunk_that_was_trained_on_is_asked_about(letters: PreTrainedTokenizerBase) -> None:
    made = corpus(letters, CAUSAL, chunks=3)
    options = asked(prefix_tokens=4)
    found = cut_records([word(50), word(9)], made, **options)
    assert [each.record for each in found] == [0, 0, 0, 1]
    whole = tokens_of(letters, 50)
    assert [each.beginning.read[1:] + each.asked[0] for each in found[:2]] == [
        whole[:23],
        whole[23:46],
    ]
    chosen = cut_records([word(50), word(9)], made, **options, rows=[[1], [0]])
    assert chosen == [found[1], found[3]]


@pytest.mark.parametrize(
    ("kind", "hidden", "changes"),
    [
        (CAUSAL, "spans", {}),
        (SEQ2SEQ, "spans", {}),
        (MASKED, "continuation", {}),
    ],
)
def test_what_a_model_has_not_learned_to_write_is_refused(
    letters: PreTrainedTokenizerBase, kind: str, hidden: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=rf"audit\.hidden={hidden} needs a "):
        cut_records([], corpus(letters, kind, **changes), **asked(hidden=hidden))
    with pytest.raises(InputError, match=r"audit\.hidden must be continuation or spans, got 'x'"):
        Memorization(hidden="x")
