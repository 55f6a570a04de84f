"""The base of an adapter, saved beside it where no other place holds it.

A checkpoint has a ``name_or_path`` to load it from; a random initialization has not, and without
its base an adapter is worth nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.methods.base import LARGEST_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASE = "base"
"""Folder of the base, in the model's."""


def base_folder(folder: Path) -> Path | None:
    """Returns where a model's folder keeps its base; None if the base is to be had elsewhere."""
    base = folder / BASE
    return base if base.is_dir() else None


def save_base(model: "PreTrainedModel", folder: Path, *, is_added: Callable[[str], bool]) -> None:
    """Writes the model as ``from_pretrained`` loads it without the method, if nothing else does.

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
