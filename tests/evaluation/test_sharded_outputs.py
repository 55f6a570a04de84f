"""What a model in shards says and writes is what the whole model does, on every rank."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dpft.commands.run_cost import shard_model
from dpft.evaluation.evaluate import group_examples
from dpft.evaluation.outputs import ModelOutputs
from dpft.generation.decoding import DecodeConfig
from dpft.parallel.parallel_config import ParallelConfig
from dpft.parallel.ranks import ALONE, Ranks
from dpft.tasks.base import Example
from tests.evaluation.test_outputs import EXAMPLES, writer
from tests.parallel.forked import on_ranks

pytestmark = pytest.mark.slow

WRITTEN = DecodeConfig(num_beams=2, max_new_tokens=5)


def said(ranks: Ranks, examples: list[Example]) -> tuple[list[str], Any]:
    """Texts and likelihoods, from a share of the records on each of several ranks."""
    outputs: ModelOutputs = replace(writer(), ranks=ranks)
    if ranks.size > 1:
        shard_model(outputs.model, ParallelConfig(name="fsdp"), torch.device("cpu"), ranks)
    texts = outputs.texts(
        [group.examples[0] for group in group_examples(examples)], WRITTEN, lambda _: None
    )
    likelihoods = outputs.likelihoods(examples, lambda _: None)
    return texts, sorted(zip(likelihoods.nll_sums, likelihoods.token_counts, strict=True))


@pytest.mark.parametrize("count", [1, 3])
def test_shards_say_and_write_what_the_whole_model_does(count: int) -> None:
    texts, likelihoods = said(ALONE, EXAMPLES[:count])
    for found, near in on_ranks(said, 2, EXAMPLES[:count]):
        assert found == texts
        for got, expected in zip(near, likelihoods, strict=True):
            assert got == pytest.approx(expected, rel=1e-5)
