"""What is saved from shards is, byte for byte, what a model in one piece saves."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from dpft.parallel.cutting import local, repeated_blocks
from dpft.parallel.ranks import Ranks, make_grid
from dpft.parallel.shards import ShardedModel, gathered
from dpft.runs.prepared_run import held_to_save
from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import CPU, Case, prepared
from tests.slowness import slow_but

FAST = [("gpt2", "full"), ("llama", "lora")]
ALL = [
    (model, method)
    for model in ("gpt2", "t5", "llama", "roberta")
    for method in ("full", "lora", "bitfit", "prefix", "rgp", "adapter")
    if (method != "bitfit" or model in ("gpt2", "roberta"))
    and (model, method) != ("roberta", "prefix")
]


@pytest.mark.parametrize(("model", "method"), slow_but(FAST, ALL))
def test_shards_are_saved_as_the_whole_model_is(tmp_path: Path, model: str, method: str) -> None:
    case = Case(model=model, method=method)
    found = []
    for size in (1, 3):
        # Of one name, which an adapter's config.json has in it.
        on_ranks(save, size, case, str(tmp_path / "model"))
        found.append(digests(tmp_path / "model"))
        shutil.rmtree(tmp_path / "model")
    assert any(name.endswith(".safetensors") for name in found[0])
    assert found[1] == found[0]


@pytest.mark.slow
def test_one_group_at_a_time_is_whole(tmp_path: Path) -> None:
    on_ranks(save_in_small_files, 2, str(tmp_path))
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    _, expected = prepared(Case(model="gpt2"))
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert model.config.architectures == ["GPT2LMHeadModel"]
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def save_in_small_files(ranks: Ranks, folder: str) -> None:
    """Saves a model in files of few tensors, and sees that no parameter of it is real."""
    _, model = prepared(Case(model="gpt2"))
    shards = ShardedModel(model, make_grid(ranks, None, CPU), ranks, blocks=repeated_blocks(model))
    ranks.served = shards.served
    with ranks.settled():
        if ranks.is_first:
            with gathered(shards, held=lambda p: False):
                assert all(parameter.is_meta for parameter in model.parameters())
                model.save_pretrained(folder, max_shard_size=1000)


def test_an_adapter_is_saved_without_its_base_where_that_has_an_address(tmp_path: Path) -> None:
    case = Case(model="llama", method="lora")
    for size, name in ((1, "whole"), (2, "cut")):
        on_ranks(save, size, case, str(tmp_path / name), "somewhere")
    assert not (tmp_path / "cut" / "base").exists()
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def save(ranks: Ranks, case: Case, folder: str, address: str = "") -> None:
    """Saves a case's model, and sees that it is as it was afterwards."""
    method, model = prepared(case)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.name_or_path = address
    if ranks.size == 1:
        method.save(model, Path(folder))
        return
    grid = make_grid(ranks, None, CPU)
    shards = ShardedModel(model, grid, ranks, blocks=repeated_blocks(model))
    ranks.served = shards.served
    before = {name: local(p).clone() for name, p in model.named_parameters()}
    with ranks.settled():
        if ranks.is_first:
            with gathered(shards, held=held_to_save(method, model)):
                method.save(model, Path(folder))
    for name, parameter in model.named_parameters():
        assert torch.equal(local(parameter), before[name])


def digests(folder: Path) -> dict[str, str]:
    """Returns a hash of each file's bytes, by its name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
