"""Save and load the folder of an adapter: the parameters that a method added to a frozen base.

Methods of dpft's own write safetensors and JSON (`save_trained`), so that nothing is unpickled
(docs/dev/design.md, rule 11). Methods of peft write what plain peft loads (`save_adapter`), and
what peft alone would lose: original weights that train with the adapter (biases, embeddings) are
added to ``adapter_model.safetensors`` under their full names, where ``PeftModel.from_pretrained``
finds them. A checkpoint has a ``name_or_path`` to load it from; a base that was never pretrained
has no address, so its weights go to ``base/`` (`save_base`).
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
    """Return where a model's folder keeps its base; None if the base is to be had elsewhere."""
    base = folder / BASE
    return base if base.is_dir() else None


def save_base(model: PreTrainedModel, folder: Path, *, is_added: Callable[[str], bool]) -> None:
    """Write the model as ``from_pretrained`` loads it without the method, if nothing else does.

    Args:
        model: The trained model, not in a wrapper of peft's; what trained of its own weights is
            written as trained.
        folder: ``BASE`` is made in it.
        is_added: Whether a name in its state is of what the method added.
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
    """Write every parameter that requires grad, by its name, a tied one once, and the settings."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    save_file(trained, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / SETTINGS, {"settings": dict(settings)})


def load_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that ``save_trained`` was given.

    Raises:
        InputError: They cannot be read.
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
    """Put the saved parameters into a model that has them all, by name.

    Raises:
        InputError: They cannot be read, or belong to another model.
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
"""Parts of the names of the parameters that peft saves by itself."""


def wrap(model: PreTrainedModel, config: "PeftConfig") -> PreTrainedModel:
    """Return the model inside peft's; the config belongs to this model alone from now on.

    peft writes the model's sizes into the config, so a config must never serve a second model.
    """
    from peft import get_peft_model

    with _quiet():
        wrapped: Any = get_peft_model(model, config)
    return cast(PreTrainedModel, wrapped)


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write a folder from which ``PeftModel.from_pretrained`` restores the trained model.

    ``adapter_config.json`` names the base as it was given to ``from_pretrained``: its hub name or
    its folder. A base without either (``name_or_path`` empty: initialized at random) is saved
    under ``base/``, and named by that folder as ``address`` does. ``dpft export`` writes the model
    card, so peft's empty one is removed.
    """
    adapted: Any = model
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    base = adapted.get_base_model()
    save_base(base, folder, is_added=_is_pefts)
    source = base.name_or_path or address(folder / BASE)
    adapted.peft_config[adapted.active_adapter].base_model_name_or_path = source
    # False: "auto" asks the hub for the base's vocabulary; a trained embedding is added below
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
    """Return a base model with a saved adapter on it, in eval mode, nothing trainable.

    Raises:
        InputError: A file of it is gone; peft would ask the hub for a repository called as the
            folder is.
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
        folder: The exported adapter.
        base_model: Hub id; None: the base is in the folder, and a loader must be given it.
        revision: Of the base on the Hub.
    """
    settings = json.loads((folder / CONFIG).read_text())
    settings |= {"base_model_name_or_path": base_model, "revision": revision}
    write_text(folder / CONFIG, json.dumps(settings, indent=2, sort_keys=True))


def address(folder: Path) -> str:
    """Return a folder's path, relative where it lies in the working directory.

    A released file shall not tell how the machine's folders are called.
    """
    path, here = folder.resolve(), Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _is_pefts(name: str) -> bool:
    return any(part in name for part in PEFT_PARTS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences what peft says of its own use of transformers, and of mixed layer kinds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.* is deprecated")
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        yield
