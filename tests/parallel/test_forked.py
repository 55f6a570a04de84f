"""The harness itself: a rank's failure is seen, and nothing hangs."""

import os
import time

import pytest

from dpft.parallel.ranks import Ranks
from tests.parallel.forked import LOST, on_ranks


def place(ranks: Ranks, more: int) -> tuple[int, int]:
    return ranks.rank + more, ranks.size


def fail_on_the_second(ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise ValueError("what it was")


def sleep_on_the_second(ranks: Ranks) -> None:
    if ranks.rank == 1:
        time.sleep(60)


def die_on_the_second(ranks: Ranks) -> int:
    if ranks.rank == 1:
        os._exit(1)
    return ranks.rank


@pytest.mark.slow
def test_each_ranks_answer_is_returned_in_order():
    assert on_ranks(place, 4, 10) == [(10, 4), (11, 4), (12, 4), (13, 4)]


@pytest.mark.slow
def test_a_ranks_exception_is_the_tests_failure():
    with pytest.raises(AssertionError, match="rank 1 of 2: Traceback(.|\n)*what it was"):
        on_ranks(fail_on_the_second, 2)


@pytest.mark.slow
def test_a_rank_that_hangs_is_killed_and_named():
    with pytest.raises(AssertionError, match=r"rank 1 of 2: still busy after 0.5 s"):
        on_ranks(sleep_on_the_second, 2, limit=0.5)


@pytest.mark.slow
def test_a_rank_that_dies_is_a_failure_unless_it_is_expected():
    with pytest.raises(AssertionError, match="rank 1 of 2: ended without an answer"):
        on_ranks(die_on_the_second, 2)
    assert on_ranks(die_on_the_second, 2, dying=[1]) == [0, LOST]
