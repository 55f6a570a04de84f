"""What passes between ranks arrives whole, and a rank's failure reaches all within seconds."""

import json
import os
import signal
import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.errors import InputError
from dpft.parallel import ranks as ranks_module
from dpft.parallel.ranks import (
    ALONE,
    RankLost,
    Ranks,
    RankShare,
    broadcast_numbers,
    in_turn,
    put_together,
)
from tests.parallel.forked import LOST, on_ranks
from tests.slowness import slow_but

SOON = 10.0
"""Seconds within which every rank must know that another one failed."""
CONTENTS = (b"", b"\0", b"key", bytes(range(256)) * 40)


def contents_sent(ranks: Ranks, piece: int) -> list[bytes]:
    ranks_module.LENGTH_OF_PIECE = piece
    return [ranks.broadcast(each if ranks.is_rank_0 else b"not read") for each in CONTENTS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "size"), slow_but([(1001, 2)], [(1001, 2), (1001, 4), (2**26, 2), (2**26, 4)])
)
def test_a_broadcast_arrives_whole_on_every_rank(size: int, piece: int) -> None:
    """Empty, short, and in many pieces."""
    assert on_ranks(contents_sent, size, piece) == [list(CONTENTS)] * size


def layouts(scale: int) -> dict[str, torch.Tensor]:
    """Tensors of every layout and dtype that a model's weights and buffers have."""
    numbers = torch.arange(1, 13, dtype=torch.float32) * scale
    return {
        "plain": numbers.clone(),
        "transposed": numbers.reshape(3, 4).t(),
        "every second": numbers[::2],
        "inside": numbers.reshape(3, 4).clone()[:, 1:3],
        "scalar": numbers[3].clone(),
        "empty": numbers[:0].clone(),
        **{
            str(dtype): (numbers % 3).to(dtype)
            for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16)
        },
    }


def layouts_copied(ranks: Ranks) -> dict[str, Any]:
    tensors = layouts(ranks.rank + 1)
    tensors["trained"] = torch.nn.Parameter(torch.full((2, 2), float(ranks.rank)))
    ranks.broadcast_tensors(list(tensors.values()))
    return {name: tensor.tolist() for name, tensor in tensors.items()}


@pytest.mark.slow
def test_every_rank_gets_the_firsts_tensors_in_place_whatever_their_layout() -> None:
    first = {name: tensor.tolist() for name, tensor in layouts(1).items()}
    first["trained"] = [[0.0, 0.0], [0.0, 0.0]]
    assert on_ranks(layouts_copied, 2) == [first] * 2


def everyones_words(ranks: Ranks) -> list[list[bytes]]:
    own = (b"a" * ranks.rank, b"", bytes([ranks.rank]))
    return [ranks.everyones(each) for each in own]


@pytest.mark.slow
def test_what_each_rank_gives_is_returned_in_the_order_of_ranks() -> None:
    """Of unequal lengths, and nothing at all."""
    expected = [[b"", b"a", b"aa", b"aaa"], [b""] * 4, [b"\0", b"\1", b"\2", b"\3"]]
    assert on_ranks(everyones_words, 4) == [expected] * 4


def flags_raised(ranks: Ranks) -> tuple[tuple[bool, ...], ...]:
    return ranks.any(ranks.rank == 1, False, True), ranks.any(False), ranks.any()


@pytest.mark.slow
def test_a_flag_is_set_where_one_rank_sets_it() -> None:
    assert on_ranks(flags_raised, 2) == [((True, False, True), (False,), ())] * 2


def numbers_drawn(ranks: Ranks) -> list[list[int]]:
    drawn = [[], [0], [5, 2**40, 7]]
    return [broadcast_numbers(each if ranks.is_rank_0 else [9], ranks) for each in drawn]


@pytest.mark.slow
def test_every_rank_gets_the_firsts_numbers() -> None:
    """Also none, which is an empty draw."""
    assert on_ranks(numbers_drawn, 2) == [[[], [0], [5, 2**40, 7]]] * 2


def test_one_process_alone_says_everything_to_itself() -> None:
    values = torch.arange(3.0)
    assert (ALONE.broadcast(b"key"), ALONE.everyones(b"a")) == (b"key", [b"a"])
    assert ALONE.any(True, False) == (True, False)
    assert broadcast_numbers((3, 1), ALONE) == [3, 1]
    assert ALONE.total(values) is values and ALONE.all_to_all(values) is values
    ALONE.broadcast_tensors([values])
    with pytest.raises(ZeroDivisionError), ALONE.failing_together():
        raise ZeroDivisionError
    assert not ALONE.traffic.collectives and not ALONE.traffic.sent_bytes


def told(ranks: Ranks, failing: dict[int, Exception]) -> tuple[str, str, int, bool]:
    """What a settled block ends with, and whether the ranks are still in step after it."""
    error: Exception = Exception("nothing")
    try:
        with ranks.failing_together():
            if ranks.rank in failing:
                raise failing[ranks.rank]
    except Exception as raised:
        error = raised
    together = ranks.everyones(b"x") == [b"x"] * ranks.size
    return type(error).__name__, str(error), getattr(error, "exit_code", 0), together


NOTHING = ("Exception", "nothing", 0, True)
BAD = ("InputError", "one fault", 2, True)
BAD_TOLD = ("SaidElsewhere", "one fault", 2, True)
BAD_ELSEWHERE = ("SaidElsewhere", "another process of the run ended with InputError.", 2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ({}, [NOTHING] * 3),
        ({0: InputError("one fault")}, [BAD, BAD_ELSEWHERE, BAD_ELSEWHERE]),
        ({2: InputError("one fault")}, [BAD_TOLD, BAD_ELSEWHERE, BAD_ELSEWHERE]),
        (
            {1: InputError("one fault"), 2: InputError("another")},
            [BAD_TOLD, BAD_ELSEWHERE, BAD_ELSEWHERE],
        ),
        (
            {1: InputError("one fault"), 2: KeyError("a bug")},
            [BAD_TOLD, BAD_ELSEWHERE, ("KeyError", "'a bug'", 0, True)],
        ),
    ],
    ids=["nobody", "the first", "the last", "two", "two, one by a bug"],
)
def test_all_ranks_leave_a_settled_block_together_or_none(
    failing: dict[int, Exception], expected: list[tuple[str, str, int, bool]]
) -> None:
    """The first says why the lowest one failed that did; a bug keeps its traceback."""
    assert on_ranks(told, 3, failing, limit=SOON)[: len(expected)] == expected


def loses_a_rank(ranks: Ranks, moment: str) -> tuple[str, float]:
    begun = time.monotonic()
    try:
        if moment == "in the block":
            with ranks.failing_together():
                if ranks.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        else:
            if ranks.rank == 1:
                os._exit(0)
            ranks.all_to_all(torch.zeros(ranks.size, 2**20))
    except RankLost as error:
        return type(error).__name__, time.monotonic() - begun
    return "nothing", 0.0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in the block", "before an exchange"])
def test_a_rank_that_dies_is_missed_by_all_others_within_seconds(moment: str) -> None:
    answers = on_ranks(loses_a_rank, 4, moment, dying=[1], limit=SOON)
    assert answers.pop(1) == LOST
    assert {name for name, _ in answers} == {"RankLost"}
    assert max(seconds for _, seconds in answers) < SOON / 2


sizes = st.integers(1, 9)
of_one_weight = st.builds(
    lambda weight, count: [weight] * count, st.integers(1, 2**20), st.integers(1, 40)
)
weights = st.lists(st.integers(0, 2**20), max_size=40) | of_one_weight
few_examples = settings(max_examples=30)


def loads(pieces: list[int], size: int) -> list[int]:
    return [sum(pieces[at] for at in RankShare(rank, size).of(pieces)) for rank in range(size)]


@few_examples
@given(weights, sizes)
def test_each_piece_is_dealt_once_and_shares_are_in_order(pieces: list[int], size: int) -> None:
    shares = [RankShare(rank, size).of(pieces) for rank in range(size)]
    assert sorted(at for share in shares for at in share) == list(range(len(pieces)))
    assert all(share == sorted(share) for share in shares)


@few_examples
@given(weights, sizes)
def test_loads_differ_by_at_most_the_heaviest_piece(pieces: list[int], size: int) -> None:
    dealt = loads(pieces, size)
    assert max(dealt) - min(dealt) <= max(pieces, default=0)


@pytest.mark.slow
@few_examples
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_rank_gets_all_answers(count: int) -> None:
    expected = [at * at for at in range(count)]
    assert squares(ALONE, count) == expected
    assert on_ranks(squares, 2, count) == [expected] * 2
