"""The harness itself: a rank's failure is seen, and nothing hangs."""

import os

import pytest

from dpft.parallel.ranks import Ranks
from tests.parallel.forked import LOST, on_ranks


def fail_on_the_second(ranks: Ranks) -> None:
    if ranks.rank == 1:
        raise ValueError("what it was")


def die_on_the_second(ranks: Ranks) -> int:
    if ranks.rank == 1:
        os._exit(1)
    return ranks.rank


@pytest.mark.slow
def test_a_ranks_exception_is_the_tests_failure():
    with pytest.raises(AssertionError, match="rank 1 of 2: Traceback(.|\n)*what it was"):
        on_ranks(fail_on_the_second, 2)


@pytest.mark.slow
def test_a_rank_that_dies_is_a_failure_unless_it_is_expected():
    with pytest.raises(AssertionError, match="rank 1 of 2: ended without an answer"):
        on_ranks(die_on_the_second, 2)
    assert on_ranks(die_on_the_second, 2, dying=[1]) == [0, LOST]
