"""A released model is known from any other by the digest in its ledger."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dpft.errors import StateError
from dpft.model_digest import (
    check_released,
    recorded_base,
    tensor_digests,
    write_released,
)

LEDGER = Path("ledger.jsonl")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder, with a part of it in a folder below."""
    (tmp_path / "model/head").mkdir(parents=True)
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0)}
    save_file(weights, tmp_path / "model/model.safetensors")
    save_file({"a": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model/head/part.safetensors")
    return tmp_path / "model"


def test_a_model_is_the_one_of_its_digest(model: Path) -> None:
    digest = write_released(model)
    assert len(digest) == 64 and set(tensor_digests(model)) == {"a", "b", "head/a"}
    check_released(model, digest, ledger=LEDGER)
    (model / "config.json").write_text("{}")
    assert write_released(model) == digest, "what is public is not covered"


@pytest.mark.parametrize(
    "weights",
    [
        {"a": torch.arange(6.0).reshape(3, 2), "b": torch.zeros(0)},
        {"a": torch.arange(6, dtype=torch.int32).reshape(2, 3), "b": torch.zeros(0)},
        {"a": torch.arange(6.0).reshape(2, 3) + 2**-20, "b": torch.zeros(0)},
        {"a": torch.arange(6.0).reshape(2, 3)},
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0), "c": torch.zeros(1)},
    ],
    ids=["shape", "type", "values", "missing", "more"],
)
def test_another_model_in_its_place_is_refused(model: Path, weights: dict) -> None:
    digest = write_released(model)
    save_file(weights, model / "model.safetensors")
    with pytest.raises(StateError, match="ledger.jsonl .1 tensors differ, the first is "):
        check_released(model, digest, ledger=LEDGER)


def test_a_weight_that_lies_beside_the_models_is_refused(model: Path) -> None:
    digest = write_released(model)
    save_file({"more": torch.zeros(1)}, model / "adapter.safetensors")
    with pytest.raises(StateError, match="the first is more"):
        check_released(model, digest, ledger=LEDGER)
    save_file({"a": torch.zeros(1)}, model / "adapter.safetensors")
    with pytest.raises(StateError, match="tensor a"):
        check_released(model, digest, ledger=LEDGER)


def test_weights_of_another_format_beside_the_models_are_refused(model: Path) -> None:
    """An export would include them."""
    digest = write_released(model)
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(StateError, match=r"pytorch_model\.bin"):
        check_released(model, digest, ledger=LEDGER)


def test_an_adapter_beside_a_whole_model_is_refused(model: Path) -> None:
    """A loader would take the base that the adapter names instead of these weights."""
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "other"}')
    digest = write_released(model)
    check_released(model, digest, ledger=LEDGER)
    (model / "config.json").write_text("{}")
    with pytest.raises(StateError, match=r"adapter_config\.json"):
        check_released(model, digest, ledger=LEDGER)


@pytest.mark.parametrize("released", [None, "0" * 64])
def test_nothing_to_compare_with_is_no_match(model: Path, released: str | None) -> None:
    with pytest.raises(StateError, match="ledger.jsonl"):
        check_released(model, released, ledger=LEDGER)
    for path in model.rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(StateError, match=str(model)):
        check_released(model, released, ledger=LEDGER)


@pytest.mark.parametrize("kept", [0, 8, -1])
def test_a_file_that_was_cut_is_refused_by_its_name(model: Path, kept: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StateError, match=r"model\.safetensors"):
        tensor_digests(model)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter's folder, whose base lies elsewhere."""
    (tmp_path / "adapter").mkdir()
    save_file({"lora_A": torch.ones(2)}, tmp_path / "adapter/adapter_model.safetensors")
    settings = {"lora_alpha": 16, "base_model_name_or_path": "base"}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(settings))
    return tmp_path / "adapter"


def test_an_adapter_is_known_by_its_base_and_its_settings(adapter: Path) -> None:
    digest = write_released(adapter, "b" * 64)
    check_released(adapter, digest, ledger=LEDGER)
    assert recorded_base(adapter) == "b" * 64
    assert digest not in (write_released(adapter), write_released(adapter, "c" * 64))


def test_an_adapter_with_its_base_may_move(adapter: Path) -> None:
    (adapter / "base").mkdir()
    digest = write_released(adapter)
    settings = {"lora_alpha": 16, "base_model_name_or_path": "moved"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    check_released(adapter, digest, ledger=LEDGER)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("adapter_config.json", '{"lora_alpha": 64}', "1 settings differ"),
        ("adapter_config.json", "[]", "adapter_config.json"),
        ("adapter_config.json", None, "1 settings differ"),
        ("dpft_adapter.json", "{}", "1 settings differ"),
        ("tensors.json", None, "ledger.jsonl"),
        ("tensors.json", "[]", "ledger.jsonl"),
    ],
)
def test_an_adapter_that_was_edited_is_refused(
    adapter: Path, name: str, content: str | None, words: str
) -> None:
    digest = write_released(adapter, "b" * 64)
    (adapter / name).unlink(missing_ok=True)
    if content is not None:
        (adapter / name).write_text(content)
    with pytest.raises(StateError, match=words):
        check_released(adapter, digest, ledger=LEDGER)
