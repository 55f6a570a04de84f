"""The digest of a base is of what a loader makes of its folder."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dpft.errors import StateError
from dpft.models import source
from dpft.models.checkpoint_rows import base_digest
from dpft.models.source import ModelConfig
from tests.rejections import rejects

HONEST = {"a": torch.zeros(2), "b": torch.ones(3)}


@pytest.fixture
def base(tmp_path: Path) -> ModelConfig:
    """A base whose tensors lie in two files."""
    (tmp_path / "config.json").write_text("{}")
    in_shards(tmp_path, {"1.safetensors": {"a": HONEST["a"]}, "2.safetensors": {"b": HONEST["b"]}})
    return ModelConfig(name="base", path=str(tmp_path))


def in_shards(folder: Path, shards: dict[str, dict[str, torch.Tensor]]) -> None:
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
    places = {name: file for file, tensors in shards.items() for name in tensors}
    write_index(folder, json.dumps({"weight_map": places}))


def write_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)


def test_a_base_is_the_same_in_one_file_and_in_shards(base: ModelConfig, tmp_path: Path) -> None:
    digest = base_digest(base)
    save_file({"b": HONEST["b"]}, tmp_path / "1.safetensors")
    assert base_digest(base) != digest
    save_file(HONEST, tmp_path / "1.safetensors")
    assert base_digest(base) == digest, "the same tensor in two files"
    save_file(HONEST, tmp_path / "model.safetensors")
    write_index(tmp_path, "{")
    assert base_digest(base) == digest, "a loader takes the one file"


@pytest.mark.parametrize("names", [("a.safetensors", "./z.safetensors"), ("a", "z")])
def test_a_tensor_that_two_files_say_otherwise_is_refused(
    base: ModelConfig, tmp_path: Path, names: tuple[str, str]
) -> None:
    """A loader goes by the names as they are written, and may take the other one."""
    other = {"a": HONEST["a"] + 1}
    in_shards(tmp_path, {names[0]: other, names[1]: HONEST})
    write_index(tmp_path, json.dumps({"weight_map": dict(zip("ab", names, strict=True))}))
    with pytest.raises(StateError, match="tensor a"):
        base_digest(base)


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"weight_map": {"a": 3}}'],
)
def test_an_index_that_is_damaged_is_refused(base: ModelConfig, tmp_path: Path, text: str) -> None:
    write_index(tmp_path, text)
    with rejects("model.path", base.path):
        base_digest(base)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization", "nf4"),
        ("standardize_weights", True),
        ("replace_batch_norm", True),
        ("pooling", "mean"),
    ],
)
def test_what_is_made_of_the_weights_is_a_part_of_the_base(
    base: ModelConfig, key: str, value: object
) -> None:
    assert base_digest(base.replace(**{key: value})) != base_digest(base)


def test_an_adapter_beside_a_base_is_refused(base: ModelConfig, tmp_path: Path) -> None:
    """Transformers would load the base that the adapter names in the place of this one."""
    (tmp_path / "adapter_config.json").write_text("{}")
    with rejects("model.path", base.path):
        base_digest(base)


def test_a_base_that_is_gone_is_not_taken_for_one_without_safetensors(
    base: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rejects("model.path", f"{base.path}/gone"):
        base_digest(base.replace(path=f"{base.path}/gone"))
    monkeypatch.setattr(source, "hub_is_reachable", lambda: False)
    with rejects("model.hub_name", "of-nobody/gone"):
        base_digest(base.replace(path=None, hub_name="of-nobody/gone"))
