"""Combination of a task with a model: head, encoding, and loading to train or to score.

``dpft eval``, ``generate`` and ``export`` use ``TrainedModel`` to load a run's trained model or any
other model.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from dpft.commands.modality import modality_of
from dpft.config.schema import TrainConfig
from dpft.constants import TEXTS, Head
from dpft.data.batches import Layout
from dpft.data.encoding import Encoding
from dpft.errors import InputError, StateError
from dpft.evaluation.outputs import ModelOutputs
from dpft.generation.decoding import DecodeConfig
from dpft.methods.adapter_files import base_folder
from dpft.methods.base import Method
from dpft.model_digest import TENSORS, recorded_base, write_released
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.checkpoint_rows import (
    CheckpointRows,
    NotInShards,
    RowsOfModel,
    base_digest,
    checkpoint_rows,
)
from dpft.models.loading import dequantize, grow_as_planned, load_with_tokens, new_names, seeded
from dpft.models.source import ModelConfig, loading_errors, origin
from dpft.parallel.shards import ShardedModel, gathered
from dpft.run_folder import MODEL, apply_umask, sync_tree
from dpft.tasks.base import Task
from dpft.tasks.corpus import MASKS, CorpusTask

logger = logging.getLogger(__name__)


Config = TypeVar("Config", bound=TrainConfig)


def head_of(task: Task, architecture: Architecture) -> Head:
    """Return the head that the model needs for the task."""
    return modality_of(task).head(task, architecture)


def layout_of(task: Task, architecture: Architecture, head: Head) -> Layout:
    """Return the layout of the task's rows in a batch for that model; see ``Modality.layout``."""
    return modality_of(task).layout(task, architecture, head)


def encoding_of(task: Task, architecture: Architecture, head: Head, processor: Any) -> Encoding:
    """Return the encoding of the task's records for that model."""
    return modality_of(task).encoding(task, architecture, head, processor)


def prepare_model(
    config: TrainConfig,
    architecture: Architecture,
    head: Head,
    *,
    planned: bool = False,
    rows: CheckpointRows | None = None,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Return the model that the method will train, and the names of its new parameters.

    The task's tokens get their embedding rows before the method is applied. If the model is
    ``planned``, only its shapes matter, so no tokenizer is needed. The names are the names from
    before the method changed the model. ``rows`` is as in ``load_model``.

    Raises:
        InputError: The model cannot be loaded or mixes examples, or the method does not fit the
            model.
    """
    new = new_names(architecture, head)
    tokens = config.task.special_tokens
    started = () if planned else tokens
    model = load_with_tokens(architecture, head, started, seed=config.train.seed, rows=rows)
    if planned:
        grow_as_planned(model, architecture, head, tokens)
    with seeded(config.train.seed):
        return config.method.prepare(model, new), new


def prepare_in_shards(
    config: TrainConfig, architecture: Architecture, head: Head
) -> tuple[PreTrainedModel, frozenset[str], RowsOfModel | None]:
    """Return the result of ``prepare_model`` with the checkpoint's weights on the meta device.

    Each rank reads its own rows of these weights after the model is sharded. Parameters that the
    checkpoint lacks are real.

    A model is loaded whole, with no rows left to read, if it does not come from a checkpoint, gets
    rows for new tokens, or has weights that the method changes.
    """
    try:
        if architecture.model.init != "pretrained":
            raise NotInShards("its weights are initialized at random")
        with loading_errors(architecture.model):
            rows = checkpoint_rows(architecture.model)
        model, new = prepare_model(config, architecture, head, rows=rows)
        return model, new, rows.emptied(model)
    except NotInShards as error:
        reason = str(error)
    except (InputError, RuntimeError):
        reason = "loading changes its weights"  # if not, loading below raises the error again
    model, new = prepare_model(config, architecture, head)
    logger.warning("parallel=fsdp: each process first loads the whole model (%s)", reason)
    return model, new, None


def training_head(config: TrainConfig, architecture: Architecture) -> Head:
    """Return the head of a run's model, after checking that the run fits the model."""
    head = head_of(config.task, architecture)
    new_names(architecture, head)
    modality_of(config.task).check_fit(
        config.task,
        architecture,
        max_new_tokens=written_tokens(config.task, config.decode) if config.eval.enabled else None,
        extra_positions=config.method.extra_positions,
    )
    return head


def written_tokens(task: Task, decode: DecodeConfig) -> int | None:
    """Return the maximum number of tokens to generate after a prompt; None without generation."""
    masked = isinstance(task, CorpusTask) and task.objective == MASKS
    return None if masked or task.answers != TEXTS else decode.max_new_tokens


def fitted_to(config: Config, architecture: Architecture) -> Config:
    """Return the configuration of a run with the size of its records; see ``Modality.fitted``."""
    task, extra = config.task, config.method.extra_positions
    fitted = modality_of(task).fitted(task, architecture, extra)
    return config if fitted is task else config.replace(task=fitted)


def check_fit(config: TrainConfig) -> None:
    """Reject a run whose task, model and method do not fit together."""
    architecture = read_architecture(config.model)
    training_head(fitted_to(config, architecture), architecture)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model to score, to generate with or to export, and the method that restores its weights."""

    architecture: Architecture
    method: Method | None = None
    """The method that adds the run's trained parameters to the model; None if the model is whole.
    """
    folder: Path | None = None
    """Folder of these parameters and of the tokenizer."""
    tokens: tuple[str, ...] = ()
    """Tokens of a task for which the model has no embedding rows yet."""

    @property
    def extra_positions(self) -> int:
        """Number of positions that the method uses before the positions of a text."""
        return 0 if self.method is None else self.method.extra_positions

    def head(self, task: Task) -> Head:
        """Return the head of the model."""
        return head_of(task, self.architecture)

    def load(self, head: Head, *, seed: int = 0, dequantizes: bool = False) -> PreTrainedModel:
        """Return the model on the CPU.

        Args:
            head: The head of the model.
            seed: Seed for a head that the model lacks.
            dequantizes: Whether quantized weights become float32 weights of the same values, to
                which a method's weights can be added.
        """
        model = load_with_tokens(self.architecture, head, self.tokens, seed=seed)
        if dequantizes and self.architecture.model.is_quantized:
            model = dequantize(model, self.architecture.model)
        if self.method is None or self.folder is None:
            return model
        return self.method.restore(model, self.folder)

    def processor(self, task: Task, head: Head) -> Any:
        """Return the tokenizer or image processor that a run saves with its model."""
        return modality_of(task).processor(
            task, self.architecture, head, folder=self.folder, tokens=self.tokens
        )

    def encoding(self, task: Task, *, max_new_tokens: int | None) -> Encoding:
        """Return the encoding of the task's records, after checking that their lengths fit.

        The model may generate ``max_new_tokens`` tokens after a record; None means that it
        generates none.
        """
        task = self.fitted(task)
        self.check_lengths(task, max_new_tokens=max_new_tokens)
        head = self.head(task)
        return encoding_of(task, self.architecture, head, self.processor(task, head))

    def check_lengths(self, task: Task, *, max_new_tokens: int | None) -> None:
        """Reject texts that are longer than the positions that the model has for them."""
        modality_of(task).check_fit(
            self.fitted(task),
            self.architecture,
            max_new_tokens=max_new_tokens,
            extra_positions=self.extra_positions,
        )

    def fitted(self, task: Task) -> Task:
        """Return a task with the sizes that the model determines; see ``Modality.fitted``."""
        fitted: Task = modality_of(task).fitted(task, self.architecture, self.extra_positions)
        return fitted

    def has_random_head(self, task: Task) -> bool:
        """Return whether the head that the task needs has not been trained."""
        return self.method is None and bool(new_names(self.architecture, self.head(task)))

    def on_device(self, task: Task, device: torch.device) -> PreTrainedModel:
        """Return the model of a task on the device on which it will run."""
        model = self.load(self.head(task))
        model.to(device)  # type: ignore[arg-type]
        return model

    def outputs(
        self, task: Task, device: torch.device, *, batch_size: int, max_new_tokens: int
    ) -> ModelOutputs:
        """Return the object that generates texts after the task's inputs."""
        encoding = self.encoding(task, max_new_tokens=max_new_tokens)
        return ModelOutputs(
            model=self.on_device(task, device),
            encoding=encoding,
            batch_size=batch_size,
            extra_positions=self.extra_positions,
        )


def trained_model_of_run(folder: Path, config: TrainConfig) -> TrainedModel:
    """Return the trained model of a run.

    Raises:
        InputError: The model or its base model cannot be found or understood.
        StateError: The base model is not the model that the run trained on.
    """
    saved = folder / MODEL
    if config.method.saves_whole_model:
        whole = config.model.replace(path=str(saved), init="pretrained", tokenizer=None)
        return TrainedModel(architecture=read_architecture(whole))
    base, model, tokens = base_folder(saved), config.model, config.task.special_tokens
    if base is not None:
        # The saved base model already has the embedding rows of the task's tokens.
        model, tokens = model.replace(path=str(base), init="pretrained", tokenizer=None), ()
    else:
        check_base(saved, model)
    return TrainedModel(
        architecture=read_architecture(model), method=config.method, folder=saved, tokens=tokens
    )


def digest_of_base(config: TrainConfig) -> str | None:
    """Return the digest of the base model of a run's adapter, or None if there is no such digest.

    There is no digest if the run's folder contains the base model, or if the weights cannot be read
    row by row.
    """
    model = config.model
    if config.method.saves_whole_model or model.init != "pretrained" or model.is_no_address:
        return None
    try:
        return base_digest(model)
    except NotInShards as error:
        logger.warning("the ledger will not contain the digest of the base model: %s", error)
        return None


def held_to_save(method: Method, model: nn.Module) -> Callable[[nn.Parameter], bool]:
    """Return a predicate for the parameters that a process holds at once while it saves a model.

    A whole model is gathered file by file and block by block. An adapter is held whole. A base
    model is also held whole if it is saved with the adapter because it is stored nowhere else.
    """
    whole: Any = model
    saves_base = not method.saves_whole_model and not whole.name_or_path
    return lambda p: not method.saves_whole_model and (saves_base or p.requires_grad)


def save_model(
    config: TrainConfig,
    model: PreTrainedModel,
    processor: Any,
    folder: Path,
    base: str | None,
    shards: ShardedModel | None,
) -> str:
    """Save the trained model on rank 0, while other ranks help to gather it; return its digest.

    Args:
        config: The configuration of the run.
        model: The trained model.
        processor: Its tokenizer or image processor, which is saved with it.
        folder: Folder of the run.
        base: Digest of the model that an adapter was trained on; None if that model is saved too.
        shards: The sharded ``model``; None if each process has the whole model.
    """
    method = config.method
    gathering: AbstractContextManager[None] = nullcontext()
    if shards is not None:
        gathering = gathered(shards, held=held_to_save(method, model))
    with gathering:
        method.save(model, folder / MODEL)
        processor.save_pretrained(folder / MODEL)
        apply_umask(folder / MODEL)
        sync_tree(folder / MODEL)  # before the ledger is closed
        return write_released(folder / MODEL, base)


def check_base(saved: Path, model: ModelConfig) -> None:
    """Check that a base model is the model that an adapter was trained on.

    Args:
        saved: Folder of the adapter, whose digests were compared with the ledger.
        model: The base model, as the run's configuration names it now.

    Raises:
        StateError: The base model is another model.
    """
    recorded = recorded_base(saved)
    if recorded is None:
        return
    try:
        actual = base_digest(model) if model.init == "pretrained" else None
    except NotInShards:
        actual = None
    if actual != recorded:
        raise StateError(
            f"{origin(model)} is not the base model of {saved}: its digest is {actual}, but the run"
            f" trained on {recorded} (in {saved / TENSORS}). Restore the weights, or the run's"
            " config.yaml."
        )
