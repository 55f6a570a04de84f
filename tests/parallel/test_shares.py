"""Work is dealt once, evenly, and put together as it was."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.parallel.ranks import ALONE, EVERYTHING, Ranks, Share, in_turn, put_together
from tests.parallel.forked import on_ranks

weights = st.lists(st.integers(0, 2**20), max_size=40)
sizes = st.integers(1, 9)


def loads(pieces: list[int], size: int) -> list[int]:
    return [sum(pieces[at] for at in Share(rank, size).of(pieces)) for rank in range(size)]


@given(weights, sizes)
def test_each_piece_is_dealt_once_and_shares_are_in_order(pieces: list[int], size: int) -> None:
    shares = [Share(rank, size).of(pieces) for rank in range(size)]
    assert sorted(at for share in shares for at in share) == list(range(len(pieces)))
    assert all(share == sorted(share) for share in shares)


@given(weights, sizes)
def test_loads_differ_by_at_most_the_heaviest_piece(pieces: list[int], size: int) -> None:
    dealt = loads(pieces, size)
    assert max(dealt) - min(dealt) <= max(pieces, default=0)


@given(st.integers(1, 40), st.integers(1, 2**20), sizes)
def test_pieces_of_one_weight_differ_by_at_most_one_piece(
    count: int, weight: int, size: int
) -> None:
    numbers = [len(Share(rank, size).of([weight] * count)) for rank in range(size)]
    assert max(numbers) - min(numbers) <= 1


def test_the_heaviest_pieces_are_dealt_first() -> None:
    assert loads([1, 1, 2], 2) == [2, 2]


@given(weights)
def test_one_process_has_every_piece(pieces: list[int]) -> None:
    assert EVERYTHING.of(pieces) == list(range(len(pieces)))


@settings(max_examples=30)
@given(st.lists(st.none() | st.text(max_size=3), max_size=12), sizes)
def test_answers_are_put_together_in_the_order_of_the_work(answers: list[Any], size: int) -> None:
    """Of fewer pieces than ranks too."""
    own = [[answers[at] for at in in_turn(len(answers), Ranks(rank, size))] for rank in range(size)]

    class Heard(Ranks):
        def everyones(self, content: bytes) -> list[bytes]:
            return [json.dumps(each).encode() for each in own]

    for rank in range(size):
        assert put_together(own[rank], Heard(rank, size)) == answers


def squares(ranks: Ranks, count: int) -> list[int]:
    return put_together([at * at for at in in_turn(count, ranks)], ranks)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_rank_gets_all_answers(count: int) -> None:
    expected = [at * at for at in range(count)]
    assert squares(ALONE, count) == expected
    assert on_ranks(squares, 2, count) == [expected] * 2
