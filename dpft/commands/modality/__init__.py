"""Base class of modalities (text, image): how a task's records fit a model.

Each answers the same questions: what the model answers with, what is saved beside it, how a record
becomes a row and rows a batch, and whether task and model fit. Nothing else in ``runs``, in
``training`` or in ``cli`` knows what records are made of.
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
    """What follows from what a task's records are made of."""

    @abstractmethod
    def head(self, task: Any, architecture: Architecture) -> Head:
        """Return what the model must answer with to do the task."""

    @abstractmethod
    def fitted(self, task: Any, architecture: Architecture, extra_positions: int) -> Any:
        """Return the task with the size of its records, where the model says it."""

    @abstractmethod
    def check_fit(
        self,
        task: Any,
        architecture: Architecture,
        *,
        max_new_tokens: int | None,
        extra_positions: int = 0,
    ) -> None:
        """Reject records that the model has no room for."""

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
        """Return what is saved beside the model: a tokenizer, or an image processor.

        Args:
            task: Of the run.
            architecture: Of the model.
            head: What it answers with.
            folder: Where a run saved its own; None: the model's.
            tokens: Words that a tokenizer is to have beside its own.
        """

    @abstractmethod
    def layout(self, task: Any, architecture: Architecture, head: Head) -> Layout:
        """Return how rows would lie in a batch of that model; needs no more than config.json."""

    @abstractmethod
    def encoding(
        self, task: Any, architecture: Architecture, head: Head, processor: Any
    ) -> Encoding:
        """Return how the task's records become what that model reads."""


MODALITIES: Registry[Modality] = Registry("dpft.commands.modality", key="a task's modality")
"""Every modality by the name that ``Task.modality`` has; a module here registers its own."""


def modality_of(task: Task) -> Modality:
    """Return what follows from what a task's records are made of."""
    return MODALITIES.named(task.modality)
