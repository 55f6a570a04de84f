"""Ranks that read only their rows of a checkpoint have the model that is loaded whole."""

import logging
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpft.commands.task_model import prepare_in_shards, prepare_model
from dpft.constants import CAUSAL, CLASSIFIER, MASKED, SEQ2SEQ, Head
from dpft.methods.base import METHODS
from dpft.models.architecture import read_architecture
from dpft.models.source import ModelConfig
from dpft.parallel.ranks import Ranks, make_grid
from dpft.parallel.sharding import local, repeated_blocks, whole
from dpft.parallel.shards import ShardedModel
from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import MODELS
from tests.privacy.test_methods_twin import RECIPES

KINDS = {
    "gpt2": CAUSAL,
    "llama": CAUSAL,
    "t5": SEQ2SEQ,
    "roberta": MASKED,
    "classifier": CLASSIFIER,
}
WITHOUT_BIASES = ("llama", "t5")
ALL = [
    (kind, method)
    for kind in KINDS
    for method in ("full", "lora", "bitfit", "prefix", "adapter", "linear_probe")
    if (method != "bitfit" or kind not in WITHOUT_BIASES)
    and (method, kind) not in (("prefix", "roberta"), ("prefix", "classifier"))
    and (method != "linear_probe" or kind == "classifier")
]
CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), ALL)
def test_shards_that_are_read_are_those_of_the_whole_model(
    tmp_path: Path, kind: str, method: str
) -> None:
    write_checkpoint(tmp_path, kind, torch.float32)
    answers = on_ranks(read_and_compare, 3, str(tmp_path), kind, method)
    assert answers == [(True, [])] * 3


@pytest.mark.slow
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_float32(tmp_path: Path, precision: torch.dtype) -> None:
    write_checkpoint(tmp_path, "gpt2", precision)
    assert on_ranks(read_and_compare, 2, str(tmp_path), "gpt2", "full") == [(True, [])] * 2


@pytest.mark.slow
def test_a_checkpoint_of_several_files_is_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "t5", torch.float32, max_shard_size=4000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert on_ranks(read_and_compare, 2, str(tmp_path), "t5", "full") == [(True, [])] * 2


@pytest.mark.slow
def test_a_method_that_makes_others_of_the_weights_loads_them_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tmp_path, "gpt2", torch.float32)
    config, architecture, head = asked(str(tmp_path), "gpt2", "rgp")
    with caplog.at_level(logging.WARNING):
        model, _, rows = prepare_in_shards(config, architecture, head)
    assert rows is None
    assert not any(tensor.is_meta for tensor in tensors(model).values())
    assert "transformer.h.0" in caplog.text


@pytest.mark.slow
def test_checkpoints_of_one_shape_are_told_apart_by_the_same_rows(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("copy", 0), ("other", 1)):
        write_checkpoint(tmp_path / name, "gpt2", torch.float32, seed=seed)
    samples = {}
    for name in ("one", "copy", "other"):
        model, _, rows = prepare_in_shards(*asked(str(tmp_path / name), "gpt2", "full"))
        assert rows is not None
        samples[name] = rows.sampled(model, Random(b"key"))
    assert samples["one"] == samples["copy"] != samples["other"]


def write_checkpoint(
    folder: Path, kind: str, precision: torch.dtype, *, max_shard_size: int = 10**9, seed: int = 0
) -> None:
    """Save a small model, from which a classifier has no head."""
    torch.manual_seed(seed)
    model = MODELS["roberta" if kind == "classifier" else kind].build()
    model.to(precision).save_pretrained(folder, max_shard_size=max_shard_size)


def asked(folder: str, kind: str, method: str) -> tuple[Any, Any, Head]:
    """Return as much of a run's configuration as its model needs, and what model it is."""
    config = SimpleNamespace(
        method=METHODS.named(method)(name=method, **RECIPES[method]),
        task=SimpleNamespace(special_tokens=()),
        train=SimpleNamespace(seed=3),
    )
    labels = ("a", "b", "c") if KINDS[kind] == CLASSIFIER else ()
    architecture = read_architecture(ModelConfig(name="small", path=folder))
    return config, architecture, Head(kind=KINDS[kind], labels=labels)


def read_and_compare(ranks: Ranks, folder: str, kind: str, method: str) -> tuple[bool, list[str]]:
    """Return whether the model was read in shards, and the names of what differs."""
    config, architecture, head = asked(folder, kind, method)
    expected, expected_new = prepare_model(config, architecture, head)
    model, new, rows = prepare_in_shards(config, architecture, head)
    assert (new, rows is None) == (expected_new, False)
    assert rows is not None
    ShardedModel(
        model, make_grid(ranks, None, CPU), ranks, blocks=repeated_blocks(model), read=rows.read
    )
    ours, theirs = tensors(model), tensors(expected)
    assert list(ours) == list(theirs)
    assert trainable(model) == trainable(expected)
    assert model.name_or_path == expected.name_or_path
    assert model.config.to_dict() == expected.config.to_dict()
    assert not any(local(tensor).is_meta for tensor in ours.values())
    values = {name: whole(tensor) for name, tensor in ours.items()}
    return True, [name for name, value in theirs.items() if not torch.equal(value, values[name])]


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return everything that a model holds, what is tied more than once."""
    return {**dict(model.named_buffers()), **model.state_dict()}


def trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
