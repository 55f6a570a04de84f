"""Files of a method that adds modules to a frozen model: what it trained, and how it was added.

Weights are safetensors and settings are JSON, so nothing is unpickled (docs/design.md, rule 11).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dpft.errors import InputError
from dpft.files import write_json

WEIGHTS = "dpft_adapter.safetensors"
SETTINGS = "dpft_adapter.json"


def save_trained(model: nn.Module, folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes every parameter that requires grad, by its name, a tied one once, and the settings."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    save_file(trained, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / SETTINGS, {"settings": dict(settings)})


def load_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings that ``save_trained`` was given.

    Raises:
        InputError: They cannot be read.
    """
    try:
        settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())["settings"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder} must hold the {SETTINGS} that training wrote, got {error!r}; give the"
            " model folder of a finished run."
        ) from None
    return settings


@torch.no_grad()
def load_trained(model: nn.Module, folder: Path) -> None:
    """Puts the saved parameters into a model that has them all, by name.

    Raises:
        InputError: They cannot be read, or belong to another model.
    """
    own = dict(model.named_parameters())
    for name, tensor in _read_weights(folder / WEIGHTS).items():
        if name not in own or own[name].shape != tensor.shape:
            raise InputError(
                f"{folder / WEIGHTS} must be for the base model given, got {name} of shape"
                f" {tuple(tensor.shape)}, which it lacks; give the base the run began with."
            )
        own[name].copy_(tensor)


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} must hold the weights that training wrote, got {error}; give the model"
            " folder of a finished run."
        ) from None
