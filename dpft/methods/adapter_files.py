"""Folder of an adapter: the parameters that a method added to a frozen base.

dpft's own methods write safetensors and JSON (`save_trained`), so that nothing is unpickled
(docs/dev/design.md, rule 11). Methods of peft write files that peft loads without dpft
(`save_adapter`). peft would lose original weights that train with the adapter, such as biases and
embeddings. dpft adds them to ``adapter_model.safetensors`` under their full names, so that
``PeftModel.from_pretrained`` finds them. A checkpoint is loaded from its ``name_or_path``. A base
that was never pretrained has no address, so its weights are saved in ``base/`` (`save_base`).
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from dpft.errors import InputError
from dpft.methods.base import LARGEST_FILE
from dpft.model_digest import BASE
from dpft.run_folder import write_json, write_text

if TYPE_CHECKING:
    from peft import PeftConfig


def base_folder(folder: Path) -> Path | None:
    """Return the base in a model's folder; None if the base is available elsewhere."""
    base = folder / BASE
    return base if base.is_dir() else None


def save_base(model: PreTrainedModel, folder: Path, *, is_added: Callable[[str], bool]) -> None:
    """Write the base model for ``from_pretrained``, unless the base is already stored elsewhere.

    Args:
        model: Trained model that peft has not wrapped; its own weights are written as trained.
        folder: Folder in which ``BASE`` is created.
        is_added: Function that returns whether the method added a name of the model's state.
    """
    if model.name_or_path:
        return
    weights = {
        name.replace(".base_layer.", ".").replace(".original_module.", "."): weight
        for name, weight in model.state_dict().items()
        if not is_added(name)
    }
    model.save_pretrained(
        folder / BASE, state_dict=weights, safe_serialization=True, max_shard_size=LARGEST_FILE
    )


WEIGHTS = "dpft_adapter.safetensors"
SETTINGS = "dpft_adapter.json"


def save_trained(model: nn.Module, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings and all trainable parameters, by name; a tied parameter occurs once."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    save_file(trained, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / SETTINGS, {"settings": dict(settings)})


def load_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that were passed to ``save_trained``.

    Raises:
        InputError: The settings cannot be read.
    """
    try:
        settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())["settings"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder} must contain the {SETTINGS} that training writes, got {error!r}. Give the"
            " model folder of a finished run.",
            key=str(folder / SETTINGS),
        ) from None
    return settings


@torch.no_grad()
def load_trained(model: nn.Module, folder: Path) -> None:
    """Load the saved parameters, by name, into a model that has all of them.

    Raises:
        InputError: The parameters cannot be read, or belong to another model.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in _read_weights(folder / WEIGHTS).items():
        if name not in parameters or parameters[name].shape != tensor.shape:
            raise InputError(
                f"{folder / WEIGHTS} does not fit the base model, which has no {name} of shape"
                f" {tuple(tensor.shape)}. Give the base model that the run started from.",
                key=str(folder / WEIGHTS),
            )
        parameters[name].copy_(tensor)


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} must contain the weights that training writes, got {error}. Give the model"
            " folder of a finished run.",
            key=str(path),
        ) from None


PEFT_WEIGHTS, CONFIG, CARD = "adapter_model.safetensors", "adapter_config.json", "README.md"
PEFT_PARTS = ("lora_", "prompt_encoder.", ".modules_to_save.")
"""Parts of the names of those parameters that peft itself saves."""


def wrap(model: PreTrainedModel, config: "PeftConfig") -> PreTrainedModel:
    """Return the model wrapped by peft; afterwards, only this model may use the config.

    peft writes the sizes of the model into the config, so a config must never serve a second model.
    """
    from peft import get_peft_model

    with _quiet():
        wrapped: Any = get_peft_model(model, config)
    return cast(PreTrainedModel, wrapped)


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write a folder from which ``PeftModel.from_pretrained`` restores the trained model.

    ``adapter_config.json`` contains the name of the base model that was given to
    ``from_pretrained``: its Hub name or its folder. A base that was initialized at random has an
    empty ``name_or_path``. Such a base is saved under ``base/``, and ``address`` gives the name of
    that folder. ``dpft export`` writes the model card, so peft's empty card is removed.
    """
    adapted: Any = model
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    base = adapted.get_base_model()
    save_base(base, folder, is_added=_is_pefts)
    source = base.name_or_path or address(folder / BASE)
    adapted.peft_config[adapted.active_adapter].base_model_name_or_path = source
    # "auto" would ask the Hub for the base's vocabulary; a trained embedding is added below.
    adapted.save_pretrained(folder, save_embedding_layers=False)
    added = {  # trained weights of the base itself, by their names in peft's model
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not _is_pefts(name)
    }
    if added:
        weights = folder / PEFT_WEIGHTS
        partial = weights.with_name(f".{weights.name}.partial")
        save_file({**load_file(weights), **added}, partial, metadata={"format": "pt"})
        partial.replace(weights)
    (folder / CARD).unlink()


def load_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return a base model with a saved adapter, in eval mode and without trainable parameters.

    Raises:
        InputError: A file of the adapter is missing. peft would ask the Hub for a repository with
            the name of the folder.
    """
    from peft import PeftModel

    gone = [name for name in (CONFIG, PEFT_WEIGHTS) if not (folder / name).is_file()]
    if gone:
        raise InputError(
            f"{folder} must contain {gone[0]}, which training with an adapter writes. Restore the"
            " file, or give a run of another method.",
            key=str(folder / gone[0]),
        )
    with _quiet():
        loaded: Any = PeftModel.from_pretrained(model, folder, torch_device=str(model.device))
    return cast(PreTrainedModel, loaded.requires_grad_(False))


def name_base(folder: Path, base_model: str | None, revision: str | None) -> None:
    """Replace the path of the base in an exported adapter's settings by the base's Hub id.

    Args:
        folder: Folder of the exported adapter.
        base_model: Hub id; None: the base is in the folder, and users must pass it to the loader.
        revision: Revision of the base on the Hub.
    """
    settings = json.loads((folder / CONFIG).read_text())
    settings |= {"base_model_name_or_path": base_model, "revision": revision}
    write_text(folder / CONFIG, json.dumps(settings, indent=2, sort_keys=True))


def address(folder: Path) -> str:
    """Return a folder's path, relative if it is inside the working directory.

    A released file must not reveal the folder names of the machine.
    """
    path, here = folder.resolve(), Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _is_pefts(name: str) -> bool:
    return any(part in name for part in PEFT_PARTS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence peft's warnings about its use of transformers and about several kinds of layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.* is deprecated")
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        yield
