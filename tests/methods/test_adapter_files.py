"""What an adapter's folder says of its base, to whoever it is handed on to."""

import json
from pathlib import Path

import peft
import pytest
import torch
from torch import nn

from dpft.methods.adapter_files import (
    CONFIG,
    PEFT_WEIGHTS,
    SETTINGS,
    WEIGHTS,
    address,
    load_adapter,
    load_settings,
    load_trained,
    name_base,
    save_trained,
)
from tests.methods.shapes import fresh, recipe
from tests.rejections import rejects


def saved(folder: Path, settings: dict | None = None) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    save_trained(model, folder, settings or {"name": "adapter", "targets": ("a", "b")})
    return model


def test_what_trained_is_loaded_and_what_was_frozen_is_left(tmp_path: Path) -> None:
    model, other = saved(tmp_path), nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    frozen = other[0].weight.clone()
    load_trained(other, tmp_path)
    assert torch.equal(other[0].bias, model[0].bias)
    assert torch.equal(other[1].weight, model[1].weight)
    assert torch.equal(other[0].weight, frozen)


def test_the_settings_are_read_as_written_with_a_schema_version(tmp_path: Path) -> None:
    saved(tmp_path, {"name": "adapter", "bottleneck": 4})
    assert load_settings(tmp_path) == {"name": "adapter", "bottleneck": 4}
    assert json.loads((tmp_path / SETTINGS).read_text())["schema_version"] == 2


@pytest.mark.parametrize("content", [None, "{"])
def test_unreadable_files_are_rejected(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / SETTINGS).write_text(content)
        (tmp_path / WEIGHTS).write_text(content)
    with rejects(str(tmp_path / SETTINGS)):
        load_settings(tmp_path)
    with rejects(str(tmp_path / WEIGHTS)):
        load_trained(nn.Linear(1, 1), tmp_path)


def saved_adapter(folder: Path, name_or_path: str) -> str:
    """Return the base named by a LoRA adapter of a model that came from there."""
    model = fresh("gpt2")
    model.name_or_path = model.config._name_or_path = name_or_path
    method = recipe("lora", targets=("c_attn",))
    method.save(method.prepare(model), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    return str(config["base_model_name_or_path"])


@pytest.mark.slow
def test_a_base_from_the_hub_is_named_in_the_config(tmp_path: Path) -> None:
    assert saved_adapter(tmp_path, "org/base") == "org/base"
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("given", ["here", "outside"])
def test_a_local_base_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "outside").mkdir()
    name = "here" if given == "here" else str(tmp_path / "outside")
    assert saved_adapter(tmp_path / "adapter", name) == name


def test_a_random_base_is_named_by_its_folder_until_an_export_names_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved_adapter(tmp_path / "adapter", "") == "adapter/base"
    name_base(tmp_path / "adapter", "acme/base", "v1")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("acme/base", "v1")


def test_an_address_is_relative_inside_the_working_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert address(tmp_path / "here" / "base") == "base"
    assert address(tmp_path / "base") == str(tmp_path / "base")


@pytest.mark.parametrize("gone", [CONFIG, PEFT_WEIGHTS])
def test_a_part_of_an_adapter_that_is_gone_is_not_asked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Peft takes a folder without it for the name of a repository: ``run/model`` may be one."""
    for name in {CONFIG, PEFT_WEIGHTS} - {gone}:
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(peft.PeftModel, "from_pretrained", None)
    with rejects(str(tmp_path / gone)):
        load_adapter(fresh("gpt2"), tmp_path)
