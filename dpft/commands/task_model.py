"""Combine a task with a model: its head, its encoding, and loading it to train or to score.

``dpft eval``, ``generate`` and ``export`` load a run's trained model, or any other, by
``TrainedModel``.
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
    """Return what the model must answer with to do the task."""
    return modality_of(task).head(task, architecture)


def layout_of(task: Task, architecture: Architecture, head: Head) -> Layout:
    """Return how the task's rows would lie in a batch of that model; see ``Modality.layout``."""
    return modality_of(task).layout(task, architecture, head)


def encoding_of(task: Task, architecture: Architecture, head: Head, processor: Any) -> Encoding:
    """Return how the task's records become what that model reads."""
    return modality_of(task).encoding(task, architecture, head, processor)


def prepare_model(
    config: TrainConfig,
    architecture: Architecture,
    head: Head,
    *,
    planned: bool = False,
    rows: CheckpointRows | None = None,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Return the model that the method makes of the configured one, and its new parameters.

    The task's tokens have their rows before the method sees it; of a model that is ``planned`` the
    shapes alone matter, so that no tokenizer is needed. The names are those of the model before the
    method changed it. ``rows`` are as in ``load_model``.

    Raises:
        InputError: The model cannot be loaded or mixes examples, or the method does not fit it.
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
    """Return what ``prepare_model`` does, the checkpoint's weights on the meta device.

    Each rank reads its own rows of them once the model is cut; what the checkpoint lacks is real.
    A model whose weights cannot be read so is loaded whole, and nothing is left to read: one that
    does not come from a checkpoint, or gets rows for new tokens, or of whose weights the method
    makes others.
    """
    try:
        if architecture.model.init != "pretrained":
            raise NotInShards("it starts at random")
        with loading_errors(architecture.model):
            rows = checkpoint_rows(architecture.model)
        model, new = prepare_model(config, architecture, head, rows=rows)
        return model, new, rows.emptied(model)
    except NotInShards as error:
        reason = str(error)
    except (InputError, RuntimeError):
        reason = "loading changes its weights"  # otherwise the next attempt fails with the reason
    model, new = prepare_model(config, architecture, head)
    logger.warning("parallel=fsdp: each process first loads the whole model (%s)", reason)
    return model, new, None


def training_head(config: TrainConfig, architecture: Architecture) -> Head:
    """Return what the model of a run answers with, once the run is known to fit it."""
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
    """Return the most tokens that evaluation writes after a prompt; None where none are."""
    masked = isinstance(task, CorpusTask) and task.objective == MASKS
    return None if masked or task.answers != TEXTS else decode.max_new_tokens


def fitted_to(config: Config, architecture: Architecture) -> Config:
    """Return a run's configuration with the size of its records; see ``Modality.fitted``."""
    task, extra = config.task, config.method.extra_positions
    fitted = modality_of(task).fitted(task, architecture, extra)
    return config if fitted is task else config.replace(task=fitted)


def check_fit(config: TrainConfig) -> None:
    """Reject a run whose task, model and method do not go together."""
    architecture = read_architecture(config.model)
    training_head(fitted_to(config, architecture), architecture)


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
        """Return what the model answers with."""
        return head_of(task, self.architecture)

    def load(self, head: Head, *, seed: int = 0, dequantizes: bool = False) -> PreTrainedModel:
        """Return the model on the CPU.

        Args:
            head: What it answers with.
            seed: Of a head that it lacks.
            dequantizes: Whether quantized weights become float32 ones of the same values, which
                a method's own can be added to.
        """
        model = load_with_tokens(self.architecture, head, self.tokens, seed=seed)
        if dequantizes and self.architecture.model.is_quantized:
            model = dequantize(model, self.architecture.model)
        if self.method is None or self.folder is None:
            return model
        return self.method.restore(model, self.folder)

    def processor(self, task: Task, head: Head) -> Any:
        """Return what a run saves beside its model: a tokenizer, or an image processor."""
        return modality_of(task).processor(
            task, self.architecture, head, folder=self.folder, tokens=self.tokens
        )

    def encoding(self, task: Task, *, max_new_tokens: int | None) -> Encoding:
        """Return how the task's records become what the model reads, once they are known to fit.

        The model may write ``max_new_tokens`` after one; None where it writes none.
        """
        task = self.fitted(task)
        self.check_lengths(task, max_new_tokens=max_new_tokens)
        head = self.head(task)
        return encoding_of(task, self.architecture, head, self.processor(task, head))

    def check_lengths(self, task: Task, *, max_new_tokens: int | None) -> None:
        """Reject texts longer than the positions that the model has for them."""
        modality_of(task).check_fit(
            self.fitted(task),
            self.architecture,
            max_new_tokens=max_new_tokens,
            extra_positions=self.extra_positions,
        )

    def fitted(self, task: Task) -> Task:
        """Return a task with what the model says of it; see ``Modality.fitted``."""
        fitted: Task = modality_of(task).fitted(task, self.architecture, self.extra_positions)
        return fitted

    def has_random_head(self, task: Task) -> bool:
        """Return whether nothing was trained of what the model answers the task with."""
        return self.method is None and bool(new_names(self.architecture, self.head(task)))

    def on_device(self, task: Task, device: torch.device) -> PreTrainedModel:
        """Return the model of a task on the device where it is to run."""
        model = self.load(self.head(task))
        model.to(device)  # type: ignore[arg-type]
        return model

    def outputs(
        self, task: Task, device: torch.device, *, batch_size: int, max_new_tokens: int
    ) -> ModelOutputs:
        """Return what writes texts after the task's inputs."""
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
        InputError: The model, or the base of what trained, cannot be found or understood.
        StateError: The base is another than the run trained on.
    """
    saved = folder / MODEL
    if config.method.saves_whole_model:
        whole = config.model.replace(path=str(saved), init="pretrained", tokenizer=None)
        return TrainedModel(architecture=read_architecture(whole))
    base, model, tokens = base_folder(saved), config.model, config.task.special_tokens
    if base is not None:
        # saved with the rows that it had been given
        model, tokens = model.replace(path=str(base), init="pretrained", tokenizer=None), ()
    else:
        check_base(saved, model)
    return TrainedModel(
        architecture=read_architecture(model), method=config.method, folder=saved, tokens=tokens
    )


def digest_of_base(config: TrainConfig) -> str | None:
    """Return what a run's adapter is known to stand on; None where its folder holds its base."""
    model = config.model
    if config.method.saves_whole_model or model.init != "pretrained" or model.is_no_address:
        return None
    try:
        return base_digest(model)
    except NotInShards as error:
        logger.warning("the ledger will not contain the digest of the base model: %s", error)
        return None


def held_to_save(method: Method, model: nn.Module) -> Callable[[nn.Parameter], bool]:
    """Return which parameters a process holds at once when it saves a sharded model.

    A whole model is gathered file by file and block by block. An adapter is held whole, and so is a
    base that is saved with it because no other place has it.
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
    """Save the trained model on rank 0, which other ranks help to gather; return its digest.

    Args:
        config: The run's.
        model: Trained.
        processor: Its tokenizer or image processor, which is saved with it.
        folder: The run's.
        base: Digest of the model that an adapter was trained on; None: it is saved too.
        shards: ``model``, if each process has only a shard of it.
    """
    method = config.method
    gathering: AbstractContextManager[None] = nullcontext()
    if shards is not None:
        gathering = gathered(shards, held=held_to_save(method, model))
    with gathering:
        method.save(model, folder / MODEL)
        processor.save_pretrained(folder / MODEL)
        apply_umask(folder / MODEL)
        sync_tree(folder / MODEL)  # before the ledger closes, after which it is saved no more
        return write_released(folder / MODEL, base)


def check_base(saved: Path, model: ModelConfig) -> None:
    """Check that a base model is the one that an adapter was trained on.

    Args:
        saved: The adapter's folder, whose digests were compared with the ledger.
        model: The base, as the run's configuration names it now.

    Raises:
        StateError: The base is another model.
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
