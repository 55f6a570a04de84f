"""What an adapter's folder says of its base, to whoever it is handed on to."""

import json
from pathlib import Path

import pytest

from dpft.methods.peft_folder import address, relocate_adapter
from tests.methods.shapes import fresh, recipe


def saved(folder: Path, name_or_path: str) -> str:
    """Returns the base named by a LoRA adapter of a model that came from there."""
    model = fresh("gpt2")
    model.name_or_path = model.config._name_or_path = name_or_path
    method = recipe("lora", targets=("c_attn",))
    method.save(method.prepare(model), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    return str(config["base_model_name_or_path"])


def test_a_base_from_the_hub_is_named_in_the_config_and_on_the_card(tmp_path: Path) -> None:
    assert saved(tmp_path, "org/base") == "org/base"
    assert "base_model: org/base" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("given", ["here", "outside"])
def test_a_local_base_is_named_as_it_was_given_and_has_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "outside").mkdir()
    name = "here" if given == "here" else str(tmp_path / "outside")
    assert saved(tmp_path / "adapter", name) == name
    assert not (tmp_path / "adapter" / "README.md").exists()


def test_a_random_base_is_named_where_it_lies_now_and_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert saved(tmp_path / "adapter", "") == "adapter/base"
    relocate_adapter(tmp_path / "adapter", tmp_path / "elsewhere")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "elsewhere/base"


def test_an_address_is_relative_inside_the_working_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert address(tmp_path / "here" / "base") == "base"
    assert address(tmp_path / "base") == str(tmp_path / "base")
