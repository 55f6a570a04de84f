import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    IGNORED_LABEL,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
    TEXT,
)
from dpft.data.batches import (
    JsonWeights,
    TextLayout,
    collated_units,
    micro_batches,
    synthetic_rows,
)
from dpft.data.images import ImageLayout
from dpft.data.pixels import ImageForm
from dpft.data.tokenization import TokenizedExample
from dpft.models.losses import per_example_losses, token_nll
from dpft.parallel.ranks import RankShare
from tests.clipped_batches import clipped_batches
from tests.models import small
from tests.privacy.clipping.oracle import TOLERANCE, distance, total_norm, unit_gradients

SHORT = TokenizedExample(input_ids=[5, 6], labels=[-100, 6])
LONG = TokenizedExample(input_ids=[7, 8, 9], labels=[-100, 8, 9])


def test_shorter_examples_are_padded_on_the_right_without_attention_or_loss():
    batch = TextLayout().collate([SHORT, LONG])
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.labels.tolist() == [[-100, 6, -100], [-100, 8, 9]]


def test_every_row_has_position_ids_of_its_own():
    batch = TextLayout().collate([SHORT, LONG])
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert batch.inputs["position_ids"].stride(0) == 3  # not one row broadcast over the batch


WORDED = [
    TokenizedExample(input_ids=[5, 4, 6], labels=[0.25, 0.75], answer=1),
    TokenizedExample(input_ids=[7, 8], labels=[1.0, 0.0], answer=1),
]


def test_a_label_word_has_its_place_its_rivals_and_its_probabilities():
    batch = TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(3, 9)).collate(WORDED)
    assert batch.positions.tolist() == [1, 1]
    assert batch.words.tolist() == [3, 9]
    assert batch.labels.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert (batch.labels.dtype, batch.words.dtype) == (torch.float32, torch.int64)
    assert set(batch.inputs) == {"input_ids", "attention_mask", "position_ids"}


def test_a_seq2seq_model_answers_a_label_word_first():
    batch = TextLayout(
        kind=SEQ2SEQ, answer=LABEL_WORDS, words=(3, 9), decoder_start_token_id=2,
        takes_position_ids=False,
    ).collate(WORDED)  # fmt: skip
    assert batch.inputs["decoder_input_ids"].tolist() == [[2], [2]]
    assert batch.positions.tolist() == [0, 0]
    assert "position_ids" not in batch.inputs


def test_a_decoder_reads_its_labels_one_step_late():
    rows = [
        TokenizedExample(input_ids=[5], labels=[7, 8, 1]),
        TokenizedExample(input_ids=[5, 6], labels=[1]),
    ]
    batch = TextLayout(kind=SEQ2SEQ, pad_token_id=0, decoder_start_token_id=3).collate(rows)
    assert batch.inputs["input_ids"].tolist() == [[5, 0], [5, 6]]
    assert batch.inputs["decoder_input_ids"].tolist() == [[3, 7, 8], [3, 0, 0]]
    assert batch.labels.tolist() == [[7, 8, 1], [1, -100, -100]]


def test_classes_and_scores_have_no_place_and_types_are_padded():
    rows = [
        TokenizedExample(input_ids=[5, 6], labels=[3.5], token_type_ids=[0, 1]),
        TokenizedExample(input_ids=[5], labels=[1.0], token_type_ids=[0]),
    ]
    batch = TextLayout(kind=CLASSIFIER, answer=SCORE).collate(rows)
    assert (batch.positions, batch.words) == (None, None)
    assert batch.inputs["token_type_ids"].tolist() == [[0, 1], [0, 0]]
    assert batch.labels.tolist() == [[3.5], [1.0]]


def test_what_goes_with_the_batch_moves_with_it():
    batch = TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(3, 9)).collate(WORDED).to("meta")
    tensors = (batch.positions, batch.words, batch.labels, *batch.inputs.values())
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert (batch.kind, batch.answer, len(batch)) == (MASKED, LABEL_WORDS, 2)


def test_a_model_without_token_types_is_given_none():
    row = TokenizedExample(input_ids=[5], labels=[1.0], token_type_ids=[0])
    layout = TextLayout(kind=CLASSIFIER, answer=SCORE, takes_token_types=False)
    assert "token_type_ids" not in layout.collate([row]).inputs


def test_a_length_is_filled_up_to_the_next_multiple_but_not_beyond_the_longest_allowed():
    layout = TextLayout(pad_to_multiple_of=4, max_length=6)
    assert [layout.padded_length(n) for n in (1, 4, 5, 6)] == [4, 4, 6, 6]
    batch = layout.collate([SHORT, LONG])
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 0, 0], [7, 8, 9, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 3]] * 2
    assert batch.labels.tolist() == [[-100, 6, -100, -100], [-100, 8, 9, -100]]


def test_both_sides_of_a_seq2seq_model_are_filled_up():
    row = TokenizedExample(input_ids=[5], labels=[7, 1])
    batch = TextLayout(kind=SEQ2SEQ, decoder_start_token_id=3, pad_to_multiple_of=4).collate([row])
    assert batch.inputs["attention_mask"].tolist() == [[1, 0, 0, 0]]
    assert batch.inputs["decoder_input_ids"].tolist() == [[3, 7, 0, 0]]
    assert batch.labels.tolist() == [[7, 1, -100, -100]]


LAYOUTS = [
    TextLayout(),
    TextLayout(kind=SEQ2SEQ),
    TextLayout(kind=SEQ2SEQ, answer=LABEL_WORDS, words=(1, 2)),
    TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(1, 2, 3)),
    TextLayout(kind=CAUSAL, answer=LABEL_WORDS, words=(1, 2)),
    TextLayout(kind=CLASSIFIER, answer=CLASSES, outputs=3),
    TextLayout(kind=CLASSIFIER, answer=SCORE),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.kind}-{layout.answer}")
def test_rows_are_ragged_within_the_vocabulary_and_fit_the_layout(layout):
    rows = synthetic_rows(layout, 3, 12, vocab_size=5)
    lengths = [len(row.input_ids) for row in rows]
    assert lengths == sorted(set(lengths), reverse=True) and lengths[0] == 12
    assert all(0 < token < 5 for row in rows for token in row.input_ids)
    batch = layout.collate(rows)
    assert len(batch) == 3
    if layout.answer != TEXT:
        assert batch.labels.shape == (3, len(layout.words) or layout.outputs)


def test_rows_of_one_length_are_all_the_longest():
    rows = synthetic_rows(TextLayout(), 4, 9, vocab_size=5, ragged=False)
    assert {len(row.input_ids) for row in rows} == {9}


EXAMPLES = [
    TokenizedExample(input_ids=[i] * (1 + i * 7 % 5), labels=[i] * (1 + i * 7 % 5))
    for i in range(1, 12)
]


def drawn(indices: list[int], size: int) -> list[list[int]]:
    batches = micro_batches(EXAMPLES, indices, micro_batch_size=size, layout=TextLayout())
    return [batch.inputs["input_ids"][:, 0].tolist() for batch in batches]


@pytest.mark.slow
@given(st.lists(st.integers(0, len(EXAMPLES) - 1)), st.integers(1, 6))
def test_each_drawn_example_comes_once_in_pieces_of_at_most_the_size(indices, size):
    pieces = drawn(indices, size)
    assert Counter(i - 1 for piece in pieces for i in piece) == Counter(indices)
    assert all(len(piece) == size for piece in pieces[:-1])


def test_neighbors_in_length_share_a_batch_so_that_little_is_padding():
    batches = micro_batches(EXAMPLES, range(10), micro_batch_size=2, layout=TextLayout())
    assert sum(int((batch.inputs["attention_mask"] == 0).sum()) for batch in batches) == 0


def batched(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield the values ``size`` at a time."""
    return (values[start : start + size] for start in range(0, len(values), size))


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, len(EXAMPLES) - 1), max_size=3), min_size=1, max_size=6),
    st.integers(3, 8),
)
def test_a_unit_is_never_cut_in_two(units, size):
    batches = list(
        micro_batches(
            EXAMPLES, range(len(units)), micro_batch_size=size, layout=TextLayout(), units=units
        )
    )
    assert all(len(batch) <= size for batch in batches)
    found = []
    for batch in batches:
        firsts = (batch.inputs["input_ids"][:, 0] - 1).tolist()
        is_filler = torch.zeros(len(batch)) if batch.is_filler is None else batch.is_filler
        for rows, fillers in zip(
            batched(firsts, batch.rows_per_unit),
            batched(is_filler.tolist(), batch.rows_per_unit),
            strict=True,
        ):
            records = [first for first, filler in zip(rows, fillers, strict=True) if not filler]
            assert rows == [*records, *[records[-1]] * sum(map(bool, fillers))]
            found.append(records)
    assert Counter(map(tuple, found)) == Counter(tuple(unit) for unit in units if unit)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, len(EXAMPLES) - 1), max_size=3), min_size=1, max_size=6),
    st.integers(15, 40),
    st.sampled_from([1, 4]),
)
def test_tokens_bound_a_piece_and_cut_no_unit(units, tokens, multiple):
    layout = TextLayout(pad_to_multiple_of=multiple, max_length=5)
    pieces = [
        batch
        for batch in micro_batches(
            EXAMPLES, range(len(units)), micro_batch_size=100, micro_batch_tokens=tokens,
            layout=layout, units=units,
        )
    ]  # fmt: skip
    assert all(batch.inputs["input_ids"].numel() <= tokens for batch in pieces)
    assert sum(len(batch) // batch.rows_per_unit for batch in pieces) == sum(map(bool, units))
    fillers = sum(int(batch.is_filler.sum()) for batch in pieces if batch.is_filler is not None)
    assert sum(map(len, pieces)) - fillers == sum(map(len, units))


def test_a_filler_row_repeats_a_row_of_its_unit_and_has_weight_0():
    batch = collated_units([[SHORT, LONG], [SHORT]], TextLayout())
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9], [5, 6, 0], [5, 6, 0]]
    assert batch.weights.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert batch.is_filler.tolist() == [False, False, False, True]
    assert batch.rows_per_unit == 2
    full = collated_units([[SHORT, LONG], [LONG, LONG]], TextLayout())
    assert (full.weights, full.is_filler, full.rows_per_unit) == (None, None, 2)


def image_batch():
    form = ImageForm(channels=1, height=3, width=2)
    layout = ImageLayout(form=form, mean=(0.5,), std=(0.5,), outputs=3)
    rows = layout.synthetic(nn.Identity(), 3, 1)
    return layout.collate([replace(row, weight=0.5) for row in rows])


def text_batch():
    token_weights = JsonWeights(weights=(0.5,), tokenizer=Letters(["x"]))
    rows = synthetic_rows(TextLayout(), 3, 6, vocab_size=2)
    return TextLayout(token_weights=token_weights).collate(rows)


def classifier_batch():
    layout = TextLayout(kind=CLASSIFIER, answer=CLASSES, outputs=3)
    return layout.collate(synthetic_rows(layout, 3, 6, vocab_size=9))


def label_word_batch():
    layout = TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(3, 9))
    return layout.collate(synthetic_rows(layout, 3, 6, vocab_size=9))


BATCHES = {
    "text": (text_batch, {"attention_mask", "input_ids", "position_ids", "token_weights"}),
    "label words": (label_word_batch, {"attention_mask", "input_ids", "position_ids", "positions"}),
    "classes": (
        classifier_batch,
        {"attention_mask", "input_ids", "position_ids", "token_type_ids"},
    ),
    "images": (image_batch, {"pixel_values", "weights"}),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_is_a_tree_of_its_row_tensors(kind):
    make, names = BATCHES[kind]
    batch = replace(make(), rows_per_unit=3, is_padded=True)
    leaves, _ = pytree.tree_flatten_with_path(batch)
    assert {str(path[-1]).strip(".[]'") for path, _ in leaves} == names | {"labels"}
    subset = pytree.tree_map(lambda tensor: tensor[[2, 0]], batch)
    assert (subset.kind, subset.answer, subset.rows_per_unit) == (batch.kind, batch.answer, 3)
    assert subset.words is batch.words and subset.is_padded
    assert len(subset) == 2 and len(leaves) == len(names) + 1
    for (_, whole), part in zip(leaves, pytree.tree_leaves(subset), strict=True):
        assert len(whole) == 3 and torch.equal(part, whole[[2, 0]])


def shapes(examples, **limits):
    indices = range(len(examples))
    batches = micro_batches(examples, indices, layout=limits.pop("layout", TextLayout()), **limits)
    return [tuple(batch.inputs["input_ids"].shape) for batch in batches]


def test_short_records_fill_a_piece_by_tokens_until_either_limit():
    examples = [TokenizedExample(input_ids=[1] * n, labels=[1] * n) for n in (8, 2, 2, 2, 2, 2)]
    assert shapes(examples, micro_batch_size=2) == [(2, 8), (2, 2), (2, 2)]
    assert shapes(examples, micro_batch_size=9, micro_batch_tokens=10) == [(1, 8), (5, 2)]
    assert shapes(examples, micro_batch_size=4, micro_batch_tokens=10) == [(1, 8), (4, 2), (1, 2)]


def test_tokens_are_counted_with_padding_and_by_the_longer_side():
    short = [TokenizedExample(input_ids=[1] * 2, labels=[1] * 2)] * 4
    padded = TextLayout(pad_to_multiple_of=4)
    tokens = {"micro_batch_size": 9, "micro_batch_tokens": 8}
    assert shapes(short, layout=padded, **tokens) == [(2, 4), (2, 4)]
    written = [TokenizedExample(input_ids=[1] * 2, labels=[1] * 4)] * 4
    assert shapes(written, layout=TextLayout(kind=SEQ2SEQ), **tokens) == [(2, 2), (2, 2)]


@pytest.mark.slow
@given(
    st.lists(st.integers(0, len(EXAMPLES) - 1)),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_processes_have_each_piece_once_and_about_as_many_padded_tokens(indices, size, processes):
    """Pieces are those of one process, so that only the order of their sum differs."""
    layout = TextLayout(pad_to_multiple_of=8)
    whole = pieces_of(indices, size, layout, RankShare())
    shares = [pieces_of(indices, size, layout, RankShare(at, processes)) for at in range(processes)]
    assert Counter(piece for share in shares for piece in share) == Counter(whole)
    tokens = [sum(len(row) for piece in share for row in piece) for share in shares]
    heaviest = max((sum(map(len, piece)) for piece in whole), default=0)
    assert max(tokens) - min(tokens) <= heaviest


def pieces_of(indices, size, layout, share):
    batches = micro_batches(EXAMPLES, indices, micro_batch_size=size, layout=layout, share=share)
    return [tuple(map(tuple, batch.inputs["input_ids"].tolist())) for batch in batches]


class Letters:
    """A tokenizer of pieces that are given."""

    eos_token_id = 0

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = ["<end>", *pieces]

    def decode(self, ids: list[int], **_: object) -> str:
        return self.pieces[ids[0]]


def counted(pieces: list[str], weights: tuple[float, ...]) -> list[float]:
    made = JsonWeights(weights=weights, tokenizer=Letters(pieces))  # type: ignore[arg-type]
    ids = list(range(1, len(pieces) + 1))
    return made.of([IGNORED_LABEL, *ids, 0, IGNORED_LABEL])[1:-1]


def test_each_token_counts_as_the_stretch_of_its_first_letter() -> None:
    by_hand = {
        ' "a': 2, "ge": 2, '":': 2, "4": 3, '2,"': 3, "note": 4, '":"': 4, "a, b": 5, r" \"c:": 5,
        "\\": 5, '"d': 5, '",': 5, "[1": 1, "}": 1,
    }  # fmt: skip
    assert counted([*by_hand], (2, 3, 4, 5)) == [*by_hand.values(), 1]


def test_however_it_is_cut_each_letter_of_a_row_counts_as_its_own_value() -> None:
    """Against json: a value that is put in place of another moves no other value's stretch."""
    choose = random.Random(5)
    letters = 'a,:"\\ }{][é\n'
    for _ in range(200):
        values = [
            "".join(choose.choices(letters, k=choose.randint(0, 6))) if choose.random() < 0.7
            else choose.randint(-9, 99) for _ in range(4)
        ]  # fmt: skip
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
        joined = ",".join(texts)
        expected = [
            float(at + 2) for at, text in enumerate(texts) for _ in ("," if at else "") + text
        ]
        weights = tuple(float(at + 2) for at in range(4))
        assert counted(list(joined), weights)[:-1] == expected
        cuts = sorted(choose.sample(range(1, len(joined)), min(3, len(joined) - 1)))
        ends = [0, *cuts, len(joined)]
        pieces = [joined[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        assert counted(pieces, weights)[:-1] == [expected[at] for at in ends[:-1]]


@pytest.fixture(scope="module")
def layout() -> TextLayout:
    tokenizer = Letters(['"a"', ":1", ',"t"', ':"', "x", "y z", '"', "}"])
    weights = JsonWeights(weights=(1, 2, 1, 5), tokenizer=tokenizer)  # type: ignore[arg-type]
    return TextLayout(token_weights=weights)


ROWS = [[8, 1, 2, 3, 4, 5, 6, 7, 8, 0], [8, 1, 2, 8, 0], [1, 2, 3, 4, 5, 5, 5, 5, 5], [3, 3]]
"""Prompts of one token, but the last, which is all prompt."""


def rows() -> list[TokenizedExample]:
    found = []
    for number, ids in enumerate(ROWS):
        given = 1 if number < 3 else len(ids)
        labels = [IGNORED_LABEL] * given + ids[given:]
        found.append(TokenizedExample(input_ids=ids, labels=labels))
    return found


WEIGHTS = [[1, 2, 1, 5, 5, 5, 5, 5, 1], [1, 2, 2, 1], [2, 1, 5, 5, 5, 5, 5, 5], []]


def test_losses_are_means_by_weight_and_perplexity_is_of_all_alike(layout: TextLayout) -> None:
    model = small.language_model("gpt2")
    whole = layout.collate(rows())
    losses = per_example_losses(model, whole)
    sums, tokens = token_nll(model, whole)
    for at, ids in enumerate(ROWS):
        weights = torch.tensor(WEIGHTS[at], dtype=torch.float32)
        if not len(weights):
            assert losses[at] == 0
            continue
        logits = model(input_ids=torch.tensor([ids])).logits[0, -len(weights) - 1 : -1]
        each = functional.cross_entropy(
            logits, torch.tensor(ids[-len(weights) :]), reduction="none"
        )
        torch.testing.assert_close(losses[at], (each * weights).sum() / weights.sum())
        torch.testing.assert_close(sums[at], each.sum())
    assert tokens.tolist() == [9, 4, 8, 0]


@pytest.mark.slow
@pytest.mark.parametrize("norm", [1e-2, 1.0])
def test_weighted_gradients_are_clipped_as_one_at_a_time(layout: TextLayout, norm: float) -> None:
    model = small.language_model("gpt2").eval()
    batch, alone = layout.collate(rows()), [layout.collate([row]) for row in rows()]
    expected = unit_gradients(model, per_example_losses, batch, alone=alone)
    without_weights = replace(layout, token_weights=None)  # as its tokenizer knows a few ids only
    got = clipped_batches(model, [batch], norm, layout=without_weights, engine="book_keeping")
    assert float(total_norm(got.gradients)) > 0.5 * norm
    assert distance(got, expected, norm) <= TOLERANCE
