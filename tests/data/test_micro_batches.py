from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.data.collation import TextLayout
from dpft.data.micro_batches import micro_batches
from dpft.data.tokenization import TokenizedExample
from dpft.kinds import SEQ2SEQ
from dpft.parallel.shares import Share

EXAMPLES = [
    TokenizedExample(input_ids=[i] * (1 + i * 7 % 5), labels=[i] * (1 + i * 7 % 5))
    for i in range(1, 12)
]


def drawn(indices: list[int], size: int) -> list[list[int]]:
    batches = micro_batches(EXAMPLES, indices, micro_batch_size=size, layout=TextLayout())
    return [batch.inputs["input_ids"][:, 0].tolist() for batch in batches]


def test_an_empty_draw_yields_nothing():
    assert drawn([], 4) == []


@given(st.lists(st.integers(0, len(EXAMPLES) - 1)), st.integers(1, 6))
def test_each_drawn_example_comes_once_in_pieces_of_at_most_the_size(indices, size):
    pieces = drawn(indices, size)
    assert Counter(i - 1 for piece in pieces for i in piece) == Counter(indices)
    assert all(len(piece) == size for piece in pieces[:-1])


def test_neighbors_in_length_share_a_batch_so_that_little_is_padding():
    batches = micro_batches(EXAMPLES, range(10), micro_batch_size=2, layout=TextLayout())
    assert sum(int((batch.inputs["attention_mask"] == 0).sum()) for batch in batches) == 0


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
        by_unit = {}
        for number, first in zip(batch.units.tolist(), firsts, strict=True):
            by_unit.setdefault(number, []).append(first)
        found += by_unit.values()
    assert Counter(map(tuple, found)) == Counter(tuple(unit) for unit in units if unit)


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
    assert sum(len(batch.units.unique()) for batch in pieces) == sum(map(bool, units))
    assert sum(map(len, pieces)) == sum(map(len, units))


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


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_data_set_is_left_in_its_order(size):
    before = list(EXAMPLES)
    drawn([3, 1, 2], size)
    assert before == EXAMPLES


@given(
    st.lists(st.integers(0, len(EXAMPLES) - 1)),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_processes_have_each_piece_once_and_about_as_many_padded_tokens(indices, size, processes):
    """Pieces are those of one process, so that only the order of their sum differs."""
    layout = TextLayout(pad_to_multiple_of=8)
    whole = pieces_of(indices, size, layout, Share())
    shares = [pieces_of(indices, size, layout, Share(at, processes)) for at in range(processes)]
    assert Counter(piece for share in shares for piece in share) == Counter(whole)
    tokens = [sum(len(row) for piece in share for row in piece) for share in shares]
    heaviest = max((sum(map(len, piece)) for piece in whole), default=0)
    assert max(tokens) - min(tokens) <= heaviest


def pieces_of(indices, size, layout, share):
    batches = micro_batches(EXAMPLES, indices, micro_batch_size=size, layout=layout, share=share)
    return [tuple(map(tuple, batch.inputs["input_ids"].tolist())) for batch in batches]
