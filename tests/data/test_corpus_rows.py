"""A corpus's texts as rows of each kind of model, whole and in chunks."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dpft.data.batches import TextLayout, ViewedRows
from dpft.data.corpora import (
    CorpusEncoding,
    MaskedTokens,
    SpanCorruption,
    corrupted_lengths,
    noise_of,
    raw_length,
)
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.kinds import CAUSAL, IGNORED_LABEL, MASKED, SEQ2SEQ
from dpft.tasks.base import Example
from dpft.tokenizers import Pieces, save_tokenizer
from tests.models import small

LETTERS = "abcdefghij"
END, FIRST = 1, 4
"""Ids of the end-of-text token and of the first letter; a blank's piece is before it."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A token for each letter; also the roles of [MASK], [CLS] and [SEP]."""
    pieces = Pieces(pieces=(("▁", -9.0), *((letter, -1.0) for letter in LETTERS)))
    folder = tmp_path_factory.mktemp("letters")
    save_tokenizer(folder, pieces, algorithm="unigram", sentinels=4)
    made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return made


def text_of(length: int) -> Example:
    """A word whose tokens are the blank's piece and ``length - 1`` letters."""
    word = (LETTERS * length)[: length - 1]
    return Example(prompt="", target=word, group=word, cut_target_end=True)


def ids_of(length: int) -> list[int]:
    return [3, *(FIRST + at % len(LETTERS) for at in range(length - 1))]


def encoding(
    tokenizer: PreTrainedTokenizerBase, kind: str, *, max_length: int, **changes: object
) -> CorpusEncoding:
    layout = TextLayout(kind=kind, pad_token_id=0)
    return CorpusEncoding(tokenizer=tokenizer, layout=layout, max_length=max_length, **changes)  # type: ignore[arg-type]


def test_a_long_text_has_chunks_of_itself_alone_and_no_more_than_asked(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    made = encoding(tokenizer, CAUSAL, max_length=6, chunks=2)
    rows, counts = made.rows_in_chunks([text_of(12), text_of(3), text_of(5)])
    assert counts.tolist() == [2, 1, 1]
    whole = ids_of(12)
    assert [row.input_ids[1:] for row in rows] == [
        whole[:5], whole[5:10], [*ids_of(3), END], ids_of(5),
    ]  # fmt: skip
    assert [row.labels for row in rows] == [[IGNORED_LABEL, *row.input_ids[1:]] for row in rows]
    assert [row.truncated for row in rows] == [False, True, False, False]


def test_a_prefix_is_read_and_what_follows_is_written(tokenizer: PreTrainedTokenizerBase) -> None:
    """In the proportion of 512 to 114, as whole texts of 626 tokens are."""
    made = encoding(tokenizer, SEQ2SEQ, max_length=512)
    assert made.raw_length == 626
    (whole, short) = made.rows([text_of(700), text_of(9)])
    assert (len(whole.input_ids), len(whole.labels)) == (512, 114)
    assert [*whole.input_ids, *whole.labels] == ids_of(700)[:626]
    assert whole.truncated
    assert [*short.input_ids, *short.labels] == [*ids_of(9), END]
    assert len(short.labels) == 2


def test_spans_are_hidden_of_a_chunk_that_fills_the_model(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    made = encoding(tokenizer, SEQ2SEQ, max_length=24, span_corruption=True)
    (row,) = made.rows_together([text_of(40)])
    assert len(row.input_ids) == made.raw_length == 26
    (read,) = made.rows([text_of(40)])
    assert len(read.input_ids) <= 24
    assert len(read.labels) <= 24
    assert made.rows([text_of(40)]) == [read], "a score does not change by chance"


def test_a_tokenizer_of_too_few_sentinels_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InputError, match="needs 28 sentinels, <extra_id_0>.* with 4; make one"):
        encoding(tokenizer, SEQ2SEQ, max_length=512, span_corruption=True)


def test_a_masked_model_reads_a_text_between_its_marks(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    marked = AutoTokenizer.from_pretrained(tmp_path, mask_token="<extra_id_0>")
    made = encoding(marked, MASKED, max_length=8)
    (row,) = made.rows_together([text_of(20)])
    around = len(marked("").input_ids)
    assert len(row.input_ids) == 8
    assert made.raw_length == 8 - around
    (read,) = made.rows([text_of(20)])
    learned = [at for at, label in enumerate(read.labels) if label != IGNORED_LABEL]
    assert learned
    assert [read.labels[at] for at in learned] == [row.input_ids[at] for at in learned]


def test_gaps_of_a_prompt_are_sentinels_and_it_ends_as_all_that_is_read(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    made = encoding(tokenizer, SEQ2SEQ, max_length=40, span_corruption=True)
    (found,) = prompts(made, "ab ____ cd _____")
    blank, first = 3, FIRST
    one, two = made.asked_sentinels[:2]
    assert found == [blank, first, first + 1, one, blank, first + 2, first + 3, two, END]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abc", r"in the gaps \(____\) of a text alone, got a text without"),
        ("____ a " * 4, r"no more gaps \(____\) .* to fill, 1 with task\.max_length=16, got 4;"),
        ("abcdefghij" * 2 + "____", r"at most task\.max_length \(16\) tokens .*, got 23"),
    ],
)
def test_a_prompt_whose_gaps_cannot_be_filled_is_refused(
    tokenizer: PreTrainedTokenizerBase, text: str, words: str
) -> None:
    made = encoding(tokenizer, SEQ2SEQ, max_length=16, span_corruption=True)
    with pytest.raises(InputError, match=words):
        prompts(made, text)


def test_what_a_model_goes_on_from_is_the_end_of_a_beginning_or_nothing(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    prefix = encoding(tokenizer, SEQ2SEQ, max_length=6)
    assert prompts(prefix, "abcdefgh") == [[FIRST + at for at in range(2, 8)]]
    assert prefix.asked_sentinels == ()
    causal = encoding(tokenizer, CAUSAL, max_length=6, chunks=2)
    assert prompts(causal, "") == [[END]], "the start token, from which a whole text is written"


def prompts(made: CorpusEncoding, text: str) -> list[list[int]]:
    example = Example(prompt=text, target="", group=text)
    return made.prompts([example], max_length=made.max_length, max_new_tokens=2)


def test_a_masked_model_needs_no_end_of_text_token_for_a_text_of_several_chunks(
    tmp_path: Path,
) -> None:
    """BERT's tokenizer has none."""
    bert = small.wordpiece(tmp_path / "bert")
    assert bert.eos_token_id is None
    made = encoding(bert, MASKED, max_length=6, chunks=2)
    text = Example(prompt="", target="the film was great and the play was dull", group="")
    rows, counts = made.rows_in_chunks([text])
    assert counts.tolist() == [2]
    assert [len(row.input_ids) for row in rows] == [6, 6]


END_OF_TEXT, SENTINELS = 1, tuple(range(1000, 1030))
SPANS = SpanCorruption(noise_density=0.15, mean_span=3.0, sentinels=SENTINELS, end=END_OF_TEXT)
MASKS = MaskedTokens(noise_density=0.15, mask=4, special=frozenset({2, 3}), vocab_size=900)


class Hashed:
    """Bits that follow from step and record."""

    def bits(self, step: int, record: int, size: int) -> bytes:
        return hashlib.shake_256(f"{step} {record}".encode()).digest(size)


def row(length: int) -> TokenizedExample:
    ids = list(range(10, 10 + length))
    return TokenizedExample(input_ids=ids, labels=ids)


def viewed(view: SpanCorruption | MaskedTokens, length: int, number: int = 0) -> TokenizedExample:
    return view(row(length), lambda size: Hashed().bits(number, 0, size))


def filled(view: TokenizedExample) -> list[int]:
    """The text again: each sentinel in what is read replaced by its span of the target."""
    spans: dict[int, list[int]] = {}
    target = [int(label) for label in view.labels[:-1]]
    for token in target:
        if token in SENTINELS:
            last = spans[token] = []
        else:
            last.append(token)
    text = []
    for token in view.input_ids[:-1]:
        text += spans.pop(token) if token in spans else [token]
    assert spans == {}
    return text


def test_the_papers_lengths_come_out() -> None:
    """Ponomareva et al. 2022, section 4: 512 tokens read, 114 learned; of T5's 568."""
    assert corrupted_lengths(568, density=0.15, mean_span=3.0) == (512, 114)
    assert raw_length(512, density=0.15, mean_span=3.0) == 568
    view = viewed(SPANS, 568)
    assert (len(view.input_ids), len(view.labels)) == (512, 114)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20, 64, 200])
def test_the_hidden_spans_and_the_rest_make_the_text_again(length: int) -> None:
    for number in range(20):
        view = viewed(SPANS, length, number)
        assert filled(view) == row(length).input_ids
        assert view.input_ids[-1] == view.labels[-1] == END_OF_TEXT
        read, written = corrupted_lengths(length, density=0.15, mean_span=3.0)
        assert (len(view.input_ids), len(view.labels)) == (read, written)


def test_every_way_of_cutting_is_as_likely() -> None:
    """Of 40 tokens 6 are hidden, in two spans: five ways, equally likely."""
    assert noise_of(40, density=0.15, mean_span=3.0) == (6, 2)
    first = Counter(
        viewed(SPANS, 40, number).labels.index(SENTINELS[1]) - 1 for number in range(2000)
    )
    assert set(first) == {1, 2, 3, 4, 5}, "6 tokens in two spans: five ways"
    assert max(abs(count - 400) for count in first.values()) < 90  # 5 deviations


def test_masked_tokens_are_learned_where_they_stood_and_special_ones_never() -> None:
    masked = other = kept = 0
    for number in range(200):
        ids = [2, *range(10, 50), 3]
        text = TokenizedExample(input_ids=ids, labels=ids)
        view = MASKS(text, lambda size, n=number: Hashed().bits(n, 1, size))
        chosen = [at for at, label in enumerate(view.labels) if label != IGNORED_LABEL]
        assert chosen and not {0, 41} & set(chosen)
        assert [view.labels[at] for at in chosen] == [ids[at] for at in chosen]
        for at, token in enumerate(view.input_ids):
            if at not in chosen:
                assert token == ids[at]
            masked += at in chosen and token == 4
            kept += at in chosen and token == ids[at]
            other += at in chosen and token not in (4, ids[at])
    total = masked + kept + other
    assert total / (200 * 40) == pytest.approx(0.15, abs=0.02)
    assert masked / total == pytest.approx(0.8, abs=0.05)
    assert kept / total == pytest.approx(0.1, abs=0.03)


def test_a_view_is_drawn_anew_at_each_step_and_does_not_depend_on_other_records() -> None:
    rows = [row(60), row(80), row(60)]
    at_step = [ViewedRows(rows, SPANS, Hashed(), step) for step in (0, 0, 1)]
    assert at_step[0][2] == at_step[1][2]
    assert at_step[0][0] != at_step[2][0]
    assert at_step[0][0] != at_step[0][2], "equal texts are viewed apart"
    others = ViewedRows([row(5), rows[1], row(9)], SPANS, Hashed(), 0)
    assert others[1] == at_step[0][1]
    assert at_step[0][0:2] == [at_step[0][0], at_step[0][1]]
    assert len(others) == 3
