"""What every fine-tuning method is: it makes a model ready and names what trains.

Adding a method is a module here with a ``METHOD``, a YAML in conf/method and a test.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from dpft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """How many numbers a run trains, of how many; a tied parameter counts once."""

    trainable: int
    new: int
    """Of the trainable: task heads that the base checkpoint's architecture lacks."""
    total: int


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Base of every method; its fields are its configuration, ``conf/method/<name>.yaml``."""

    name: str

    @abstractmethod
    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model to train, with ``requires_grad`` set on exactly what trains.

        Args:
            model: A fresh model; it may be on the meta device. It may be changed in place.
        """

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Writes the trained model so that Hugging Face's ``from_pretrained`` loads it."""
        model.save_pretrained(folder, safe_serialization=True)


def count_parameters(model: nn.Module, new: frozenset[str] = frozenset()) -> ParameterCounts:
    """Returns the counts of a prepared model.

    Args:
        model: After ``Method.prepare``.
        new: Names of the parameters that the base checkpoint's architecture lacks.

    Raises:
        InputError: Nothing is trainable.
    """
    trainable = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InputError("method must leave a parameter to train, got none; choose another one.")
    return ParameterCounts(
        trainable=sum(trainable.values()),
        new=sum(size for name, size in trainable.items() if name in new),
        total=sum(p.numel() for p in model.parameters()),
    )


def method_names() -> list[str]:
    """Returns the names of the methods in this package, one module each."""
    package = importlib.import_module("dpft.methods")
    return sorted({module.name for module in pkgutil.iter_modules(package.__path__)} - {"base"})


def method_class(name: str) -> type[Method]:
    """Returns the method class that ``dpft/methods/<name>.py`` calls ``METHOD``.

    Raises:
        InputError: There is no such method.
    """
    if name not in method_names():
        raise InputError(f"method.name must be one of {', '.join(method_names())}, got {name!r}.")
    method: type[Method] = importlib.import_module(f"dpft.methods.{name}").METHOD
    return method
