"""What ``dpft eval``, ``generate`` and ``export`` load: a run's trained model, or any other."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.encoding import Encoding
from dpft.evaluation.outputs import ModelOutputs
from dpft.kinds import Head
from dpft.methods.adapter_files import base_folder
from dpft.methods.base import Method
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.loading import load_with_tokens, new_names
from dpft.run_folder import MODEL
from dpft.runs.modality.base import modality_of
from dpft.runs.task_model import encoding_of, head_of
from dpft.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model to score, to write with or to export, and what a method has to put onto it."""

    architecture: Architecture
    method: Method | None = None
    """Puts what the run trained onto the model; None: the model is whole."""
    folder: Path | None = None
    """Where that and the tokenizer are."""
    tokens: tuple[str, ...] = ()
    """Tokens of a task for which the model has no rows yet."""

    @property
    def extra_positions(self) -> int:
        """Positions of the model that stand before a text's own."""
        return 0 if self.method is None else self.method.extra_positions

    def head(self, task: Task) -> Head:
        """Returns what the model answers with."""
        return head_of(task, self.architecture)

    def load(self, head: Head, *, seed: int = 0) -> PreTrainedModel:
        """Returns the model on the CPU.

        Args:
            head: What it answers with.
            seed: Of a head that it lacks.

        Raises:
            InputError: It cannot be found or understood, or mixes examples.
        """
        model = load_with_tokens(self.architecture, head, self.tokens, seed=seed)
        if self.method is None or self.folder is None:
            return model
        return self.method.restore(model, self.folder)

    def processor(self, task: Task, head: Head) -> Any:
        """Returns what a run saves beside its model: a tokenizer, or an image processor."""
        return modality_of(task).processor(
            task, self.architecture, head, folder=self.folder, tokens=self.tokens
        )

    def encoding(self, task: Task, *, max_new_tokens: int | None) -> Encoding:
        """Returns how the task's records become what the model reads, once they are known to fit.

        Args:
            task: Says how long its records may be.
            max_new_tokens: Tokens that the model may write after one; None where it writes none.

        Raises:
            InputError: As ``Modality.check_fit`` and ``encoding_of``.
        """
        task = self.fitted(task)
        self.check_lengths(task, max_new_tokens=max_new_tokens)
        head = self.head(task)
        return encoding_of(task, self.architecture, head, self.processor(task, head))

    def check_lengths(self, task: Task, *, max_new_tokens: int | None) -> None:
        """Refuses texts longer than the positions that the model has for them.

        Raises:
            InputError: Records, or an input with what is written after it, may not fit.
        """
        modality_of(task).check_fit(
            self.fitted(task),
            self.architecture,
            max_new_tokens=max_new_tokens,
            extra_positions=self.extra_positions,
        )

    def fitted(self, task: Task) -> Task:
        """Returns a task with what the model says of it; see ``Modality.fitted``."""
        fitted: Task = modality_of(task).fitted(task, self.architecture, self.extra_positions)
        return fitted

    def has_random_head(self, task: Task) -> bool:
        """Returns whether nothing was trained of what the model answers the task with."""
        return self.method is None and bool(new_names(self.architecture, self.head(task)))

    def on_device(self, task: Task, device: torch.device) -> PreTrainedModel:
        """Returns the model of a task on the device where it is to run.

        Raises:
            InputError: As ``load``.
        """
        model = self.load(self.head(task))
        model.to(device)  # type: ignore[arg-type]
        return model

    def outputs(
        self, task: Task, device: torch.device, *, batch_size: int, max_new_tokens: int
    ) -> ModelOutputs:
        """Returns what writes texts after the task's inputs.

        Raises:
            InputError: As ``encoding`` and ``load``.
        """
        encoding = self.encoding(task, max_new_tokens=max_new_tokens)
        return ModelOutputs(
            model=self.on_device(task, device),
            encoding=encoding,
            batch_size=batch_size,
            extra_positions=self.extra_positions,
        )


def trained_model_of_run(folder: Path, config: TrainConfig) -> TrainedModel:
    """Returns the trained model of a run.

    Args:
        folder: The run's folder.
        config: The run's configuration.

    Raises:
        InputError: The model, or the base of what trained, cannot be found or understood.
    """
    saved = folder / MODEL
    if config.method.saves_whole_model:
        whole = replace(config.model, path=str(saved), init="pretrained", tokenizer=None)
        return TrainedModel(architecture=read_architecture(whole))
    base, model, tokens = base_folder(saved), config.model, config.task.special_tokens
    if base is not None:
        # saved with the rows that it had been given
        model, tokens = replace(model, path=str(base), init="pretrained", tokenizer=None), ()
    return TrainedModel(
        architecture=read_architecture(model),
        method=config.method,
        folder=saved,
        tokens=tokens,
    )
