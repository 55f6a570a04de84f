"""The planned bytes of a step against those that real ranks hand to the network."""

import pytest

from dpft.estimates.rank_memory import Traffic
from dpft.parallel.parallel_config import SHARDED, WHOLE, ParallelConfig
from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import Case, Outcome, prepared, take_steps
from tests.slowness import slow_but

STEPS = {"sample_rate": 1.0, "micro_batch_size": 3}
CASES = {
    "ddp": Case(engine="book_keeping", **STEPS),
    "whole": Case(engine="book_keeping", shard_size=2, **STEPS),
    "sharded": Case(engine="book_keeping", shard_size=2, accumulates_shards=True, **STEPS),
    "two passes": Case(engine="two_pass", shard_size=2, accumulates_shards=True, **STEPS),
    "four shards": Case(engine="two_pass", shard_size=4, **STEPS),
    "llama": Case(model="llama", engine="book_keeping", shard_size=2, **STEPS),
}
MICRO_BATCHES = 24 // 3


def config_of(case: Case) -> ParallelConfig:
    """How a case spreads its model."""
    if case.shard_size is None:
        return ParallelConfig(name="ddp")
    accumulate = SHARDED if case.accumulates_shards else WHOLE
    return ParallelConfig(name="fsdp", shard_size=case.shard_size, accumulate=accumulate)


ALL = [("ddp", 2), ("ddp", 4), ("whole", 2), ("whole", 4), ("sharded", 2), ("sharded", 4)]
ALL += [("two passes", 2), ("two passes", 4), ("four shards", 4), ("llama", 2)]


@pytest.mark.parametrize(("name", "size"), slow_but([("ddp", 2)], ALL))
def test_the_plan_says_what_each_rank_sends(name: str, size: int) -> None:
    """In the second step, which has no proof; within 5 %."""
    case = CASES[name]
    _, model = prepared(case)
    traffic = Traffic.of(model, config_of(case), size)
    planned = traffic.bytes_per_step(
        engine=case.engine, micro_batches=MICRO_BATCHES // size, drawn=24
    )
    answers: list[Outcome] = on_ranks(take_steps, size, case)
    assert [answer.sent_bytes[1] for answer in answers] == pytest.approx([planned] * size, rel=0.05)


def test_one_process_sends_nothing_of_its_sums() -> None:
    _, model = prepared(CASES["ddp"])
    traffic = Traffic.of(model, ParallelConfig(), 1)
    assert traffic.bytes_per_step(engine="book_keeping", micro_batches=3, drawn=0) == 0
