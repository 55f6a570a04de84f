"""Ranks that each hold a shard of the model compute what one process does."""

from dataclasses import replace

import pytest
import torch

from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import Case, take_steps
from tests.parallel.test_exact import CASES, alone, called, distance
from tests.slowness import slow_but

FAST = [
    (Case(engine="book_keeping"), 2, 2, False),
    (Case(method="lora", engine="book_keeping", units=True), 4, 4, False),
]
GRIDS = [(2, 2), (4, 2), (4, 4)]
"""How many ranks, and how many shards."""
ALL = [
    (case, size, shard_size, accumulates_shards)
    for case in CASES
    for size, shard_size in GRIDS
    for accumulates_shards in (False, True)
]


@pytest.mark.parametrize(
    ("case", "size", "shard_size", "accumulates_shards"),
    slow_but(FAST, ALL),
    ids=lambda value: called(value) if isinstance(value, Case) else str(value),
)
def test_norms_and_clipped_sum_of_shards_equal_one_process(
    case: Case, size: int, shard_size: int, accumulates_shards: bool
) -> None:
    expected = alone(case)
    cut = replace(case, shard_size=shard_size, accumulates_shards=accumulates_shards)
    answers = on_ranks(take_steps, size, cut)
    for step in range(case.steps):
        for answer in answers:
            assert answer.norms[step] == pytest.approx(expected.norms[step], rel=1e-6)
            assert distance(answer.gradients[step], expected.gradients[step]) < 1e-6
            for name, gradient in answer.gradients[step].items():
                assert torch.equal(gradient, answers[0].gradients[step][name])
