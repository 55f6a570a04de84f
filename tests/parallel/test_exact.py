"""Several ranks compute what one process does, each with the whole model or with a shard."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from dpft.parallel.ranks import ALONE
from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import Case, Outcome, take_steps
from tests.privacy.clipping.oracle import total_norm
from tests.slowness import slow_but

ENGINES = ("book_keeping", "rows")
METHODS = ("full", "lora", "bitfit", "prefix", "rgp", "two_phase")
CASES = [
    *(Case(model=model, engine=engine) for model in ("gpt2", "t5", "llama", "roberta")
      for engine in ENGINES),
    *(Case(method=method, engine=engine) for method in METHODS[1:]
      for engine in ("auto", *ENGINES)),
    *(Case(engine=engine, checkpointing=True) for engine in ENGINES),
    *(Case(method=method, engine=engine, units=True) for method in ("full", "lora")
      for engine in ENGINES),
]  # fmt: skip
FAST = [(Case(engine="book_keeping", units=True), 2)]
FIRST = [*FAST, (Case(method="lora", engine="book_keeping", units=True, shard_size=4), 4)]
"""What CI runs of all cases for sure."""
WHOLE = [(case, size) for case in CASES for size in (2, 4)]
IN_SHARDS = [
    (replace(case, shard_size=shard_size, accumulates_shards=accumulates_shards), size)
    for case in CASES
    for size, shard_size in ((2, 2), (4, 2), (4, 4))
    for accumulates_shards in (False, True)
]


def called(case: Case) -> str:
    """A case's name in a report of tests."""
    changed = {name: value for name, value in vars(case).items() if value != getattr(Case(), name)}
    changed = {n: f"{v} shards" if n == "shard_size" else v for n, v in changed.items()}
    return "-".join(name if value is True else str(value) for name, value in changed.items())


@cache
def alone(case: Case) -> Outcome:
    """What one process makes of a case; not to be changed."""
    return take_steps(ALONE, case)


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The length of a difference of gradients, relative to theirs."""
    assert found.keys() == expected.keys()
    moved = total_norm({name: found[name].double() - expected[name] for name in expected})
    return float(moved / total_norm({n: g.double() for n, g in expected.items()}))


@pytest.mark.parametrize(
    ("case", "size"),
    slow_but(FAST, dict.fromkeys([*FIRST, *WHOLE, *IN_SHARDS])),
    ids=lambda value: called(value) if isinstance(value, Case) else str(value),
)
def test_norms_and_clipped_sum_equal_one_process(case: Case, size: int) -> None:
    expected = alone(replace(case, shard_size=None, accumulates_shards=False))
    answers = on_ranks(take_steps, size, case)
    for step in range(case.steps):
        assert len(expected.norms[step]) > 2 * size
        assert min(answer.own_units[step] for answer in answers) > 0
        for answer in answers:
            assert answer.norms[step] == pytest.approx(expected.norms[step], rel=1e-6)
            assert distance(answer.gradients[step], expected.gradients[step]) < 1e-6
            for name, gradient in answer.gradients[step].items():
                assert torch.equal(gradient, answers[0].gradients[step][name])
