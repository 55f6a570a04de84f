"""Ranks go on together or not at all, and the first one says why."""

from typing import Any

import pytest

from dpft.errors import InputError, SaidElsewhere
from dpft.parallel.ranks import ALONE, RankLost, Ranks
from tests.job_exit_codes import exit_code_of_job
from tests.parallel.thread_ranks import together


def failing(*failures: int, error: Exception) -> list[BaseException | None]:
    """Return how three ranks end of which some fail."""

    def work(ranks: Ranks) -> None:
        with ranks.failing_together():
            if ranks.rank in failures:
                raise error

    return together(3, work)


def said(error: BaseException | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return what a process does that ends with an error."""

    def job() -> None:
        if error is not None:
            raise error

    return exit_code_of_job(job), capsys.readouterr().err


def test_nothing_is_said_where_no_rank_fails() -> None:
    assert failing(error=InputError("x")) == [None, None, None]


@pytest.mark.parametrize("failures", [(0,), (2,), (1, 2), (0, 1, 2)])
def test_one_rank_says_the_sentence_of_those_that_fail_and_all_end_alike(
    failures: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [said(each, capsys) for each in failing(*failures, error=InputError("no port."))]
    assert outcomes == [(2, "dpft: error: no port.\n"), (2, ""), (2, "")]


def first_alone(error: Exception | None, *, to_all: bool) -> list[Any]:
    """Return what each of three ranks has of what rank 0 alone does, and who was asked."""
    asked = []

    def work(ranks: Ranks, *, rank: int) -> list[int]:
        asked.append(rank)
        if error is not None:
            raise error
        return [rank, 7]

    def call(ranks: Ranks) -> list[int] | None:
        ask = ranks.broadcast_from_rank_0 if to_all else ranks.on_rank_0
        return ask(work, ranks, rank=ranks.rank)

    answers = together(3, call)
    assert asked == [0]
    return answers


def test_what_rank_0_alone_does_is_returned_there_or_to_all() -> None:
    assert first_alone(None, to_all=False) == [[0, 7], None, None]
    assert first_alone(None, to_all=True) == [[0, 7]] * 3
    assert ALONE.on_rank_0(lambda: (1, 2)) == ALONE.broadcast_from_rank_0(lambda: (1, 2)) == (1, 2)
    assert not ALONE.traffic.collectives


@pytest.mark.parametrize("to_all", [False, True])
def test_where_rank_0_fails_alone_no_other_rank_waits_for_it(to_all: bool) -> None:
    first, *others = first_alone(InputError("no port."), to_all=to_all)
    assert isinstance(first, InputError) and str(first) == "no port."
    assert [(each.kind, each.exit_code, each.to_say) for each in others] == [
        ("InputError", 2, None)
    ] * 2


def test_of_a_crash_elsewhere_the_first_rank_says_the_kind_and_no_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, crashed, third = failing(1, error=KeyError("a record's word"))
    assert said(first, capsys) == (1, "dpft: error: process 1 of the run ended with KeyError.\n")
    assert isinstance(crashed, KeyError)
    assert isinstance(third, SaidElsewhere)
    assert said(third, capsys) == (1, "")


def test_of_a_lost_rank_each_one_that_is_left_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    """The first one may be the one that is lost."""
    code, sentence = said(RankLost(), capsys)
    assert (code, sentence[:39]) == (1, "dpft: error: another process of the run")
