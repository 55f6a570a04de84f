import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dpft.errors import InputError
from dpft.methods.added_files import SETTINGS, WEIGHTS, load_settings, load_trained, save_trained


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
    assert json.loads((tmp_path / SETTINGS).read_text())["schema_version"] == 1


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_unreadable_settings_are_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / SETTINGS).write_text(content)
    with pytest.raises(InputError, match=f"must hold the {SETTINGS}"):
        load_settings(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"not a tensor file"])
def test_unreadable_weights_are_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(InputError, match="must hold the weights"):
        load_trained(nn.Linear(1, 1), tmp_path)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5))
    with pytest.raises(InputError, match="for the base model given, got 1.* which it lacks"):
        load_trained(other, tmp_path)
