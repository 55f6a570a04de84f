"""One sum of all ranks: exact, the same bits everywhere, each stretch finished once."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpft.parallel import rank_sums as reductions
from dpft.parallel.rank_sums import finish_sums, owned_places
from dpft.parallel.ranks import ALONE, Ranks
from tests.parallel.forked import on_ranks
from tests.slowness import slow_but

LENGTHS = {
    "even": [8, 8, 8, 8],
    "one big and many small": [1, 2, 900, *[3] * 40],
    "many small and one big": [*[3] * 40, 900],
    "with empty ones": [0, 5, 0, 0, 7, 0],
    "fewer than ranks": [6],
    "all empty": [0, 0],
    "none": [],
}
TURN = 50
"""Numbers exchanged at once, so that these small stretches take many turns."""


def stretches_of(rank: int, lengths: list[int], dtype: torch.dtype) -> list[Tensor]:
    """Numbers whose float32 sum depends on the order they are added in."""
    generator = torch.Generator().manual_seed(rank)
    exponents = [torch.randint(-20, 20, (n,), generator=generator) for n in lengths]
    return [
        (torch.randn(len(e), generator=generator, dtype=torch.float64) * 2.0**e).to(dtype)
        for e in exponents
    ]


def finished(
    ranks: Ranks, lengths: list[int], dtype: torch.dtype, owned: list[list[int]] | None = None
) -> dict[str, Any]:
    """This rank's outcome, which stretches it finished, and how many exchanges that took."""
    reductions.TURN = TURN
    stretches = stretches_of(ranks.rank, lengths, dtype)
    calls = []

    def finish(parts: Sequence[tuple[int, Tensor]]) -> None:
        for place, total in parts:
            calls.append((place, len(total), str(total.dtype)))
            total.add_(place).mul_(1 / 3)

    finish_sums(stretches, finish, ranks, owned=owned)
    return {
        "bits": [each.numpy().tobytes() for each in stretches],
        "calls": calls,
        "collectives": dict(ranks.traffic.collectives),
        "sent": ranks.traffic.sent_bytes,
    }


def expected_bits(lengths: list[int], size: int, dtype: torch.dtype) -> list[bytes]:
    """The float64 sum in the order of ranks, finished, and rounded once."""
    totals = [torch.zeros(n, dtype=torch.float64) for n in lengths]
    for rank in range(size):
        for total, own in zip(totals, stretches_of(rank, lengths, dtype), strict=True):
            total += own
    return [
        ((total + place) * (1 / 3)).to(dtype).numpy().tobytes()
        for place, total in enumerate(totals)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", slow_but([2], [2, 4]))
def test_every_rank_gets_the_float64_sum_rounded_once(size: int) -> None:
    every = on_ranks(finished_each, size, list(LENGTHS.values()))
    for lengths, *answers in zip(LENGTHS.values(), *every, strict=True):
        expected = expected_bits(lengths, size, torch.float32)
        assert [answer["bits"] for answer in answers] == [expected] * size
        calls = sorted(call for answer in answers for call in answer["calls"])
        there = {place for place, _, _ in calls}
        assert calls == [(place, lengths[place], "torch.float64") for place in sorted(there)]
        assert {place for place, length in enumerate(lengths) if length} <= there


def finished_each(ranks: Ranks, each: list[list[int]]) -> list[dict[str, Any]]:
    """``finished`` for each of some lists of lengths, on ranks that are made once."""
    return [finished(ranks, lengths, torch.float32) for lengths in each]


@pytest.mark.slow
def test_a_sum_of_float64_gradients_stays_float64_in_the_order_of_ranks() -> None:
    lengths = LENGTHS["one big and many small"]
    answers = on_ranks(finished, 4, lengths, torch.float64)
    expected = expected_bits(lengths, 4, torch.float64)
    assert [answer["bits"] for answer in answers] == [expected] * 4


def test_the_test_can_tell_a_sum_in_float32_from_one_in_float64() -> None:
    first, second, third = (stretches_of(rank, [900], torch.float32)[0] for rank in range(3))
    in_float64 = (first.double() + second + third).float()
    assert not torch.equal(first + second + third, in_float64)
    assert not torch.equal(first + (second + third), first + second + third)


@pytest.mark.slow
def test_where_owners_are_given_each_gets_its_own_stretches_and_no_others() -> None:
    """As of a model in shards: what a rank does not own it has no room for."""
    lengths, owned = [8, 3, 5, 60, 0, 2], [[3, 1], [], [0, 5, 4, 2]]
    answers = on_ranks(finished, 3, lengths, torch.float32, owned)
    expected = expected_bits(lengths, 3, torch.float32)
    for rank, answer in enumerate(answers):
        before = stretches_of(rank, lengths, torch.float32)
        assert answer["bits"] == [
            expected[place] if place in owned[rank] else stretch.numpy().tobytes()
            for place, stretch in enumerate(before)
        ]
        assert {place for place, *_ in answer["calls"]} == set(owned[rank])
        assert answer["collectives"].get("all_gather", 0) == 0


@pytest.mark.slow
def test_each_number_is_sent_about_twice() -> None:
    """By all ranks together 2 R times, as in an all-reduce; the rest is filling."""
    lengths, size = [500] * 4, 4
    answers = on_ranks(finished, size, lengths, torch.float32)
    assert answers[0]["collectives"] == {"all_to_all": 1, "all_gather": 1}
    # The all-to-all's rows hold every number once, the all-gather's one those of one rank.
    assert {answer["sent"] for answer in answers} == {4 * (sum(lengths) + sum(lengths) // size)}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_one_process_finishes_its_own_numbers_in_place(lengths: list[int]) -> None:
    stretches = stretches_of(0, lengths, torch.float32)
    seen = []
    finish_sums(
        stretches, lambda parts: seen.extend((place, total.dtype) for place, total in parts), ALONE
    )
    assert seen == [(place, torch.float32) for place in range(len(lengths))]


@pytest.mark.slow
@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 9))
@settings(max_examples=30)
def test_each_stretch_has_one_owner_and_owners_have_about_as_many_numbers(
    lengths: list[int], size: int
) -> None:
    owned = owned_places(lengths, size)
    assert [place for places in owned for place in places] == list(range(len(lengths)))
    numbers = [sum(lengths[place] for place in places) for places in owned]
    longest = max(lengths, default=0)
    assert all(abs(each - sum(lengths) / size) <= longest + 1 for each in numbers)
