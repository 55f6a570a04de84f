"""Base class of modalities (text, image): how a task's records fit a model.

Each modality determines the head of the model, its tokenizer or image processor, the encoding of
records, and the layout of batches. Each modality also checks that task and model fit. No other
module in ``commands``, ``training`` or ``cli`` depends on the type of the records.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from dpft.constants import Head
from dpft.data.batches import Layout
from dpft.data.encoding import Encoding
from dpft.models.architecture import Architecture
from dpft.registry import Registry
from dpft.tasks.base import Task


class Modality(ABC):
    """Everything that depends on the type of a task's records."""

    @abstractmethod
    def head(self, task: Any, architecture: Architecture) -> Head:
        """Return the head that the model needs for the task."""

    @abstractmethod
    def fitted(self, task: Any, architecture: Architecture, extra_positions: int) -> Any:
        """Return the task, with the size of its records filled in if the model determines it."""

    @abstractmethod
    def check_fit(
        self,
        task: Any,
        architecture: Architecture,
        *,
        max_new_tokens: int | None,
        extra_positions: int = 0,
    ) -> None:
        """Reject records with a length or size that the model does not support."""

    @abstractmethod
    def processor(
        self,
        task: Any,
        architecture: Architecture,
        head: Head,
        *,
        folder: Path | None = None,
        tokens: tuple[str, ...] = (),
    ) -> Any:
        """Return the processor that is saved with the model: a tokenizer or an image processor.

        Args:
            task: The task of the run.
            architecture: The architecture of the model.
            head: The head of the model.
            folder: Folder in which a run saved its own processor; None uses the model's processor.
            tokens: Tokens that a tokenizer must have in addition to its own.
        """

    @abstractmethod
    def layout(self, task: Any, architecture: Architecture, head: Head) -> Layout:
        """Return the layout of rows in a batch for that model; this needs only config.json."""

    @abstractmethod
    def encoding(
        self, task: Any, architecture: Architecture, head: Head, processor: Any
    ) -> Encoding:
        """Return the encoding that converts the task's records to inputs of that model."""


MODALITIES: Registry[Modality] = Registry("dpft.commands.modality", key="a task's modality")
"""All modalities by the name in ``Task.modality``; a module of this package registers its own."""


def modality_of(task: Task) -> Modality:
    """Return the modality of a task."""
    return MODALITIES.named(task.modality)
