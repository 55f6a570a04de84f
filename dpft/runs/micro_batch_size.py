"""How many records are in memory at once: what ``auto`` resolves to, and what does not fit.

All of it follows from public numbers: the model's shapes, ``task.max_length``, the configuration
and how much memory the device has. No record, and no count of them but the public one, is looked
at.
"""

import logging
from dataclasses import replace
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.errors import InputError
from dpft.kinds import Head
from dpft.models.architecture import Architecture
from dpft.models.loading import meta_model, new_names
from dpft.models.vocabulary import grow_as_planned
from dpft.runs.fused_heads import with_fused_head
from dpft.runs.task_model import layout_of
from dpft.training.estimate import ModelShapes, largest_micro_batch, model_shapes
from dpft.training.positions import record_positions
from dpft.training.training_config import AUTO
from dpft.training.usable_memory import usable_memory

Config = TypeVar("Config", bound=TrainConfig)
logger = logging.getLogger(__name__)


def check_micro_batch_tokens(config: TrainConfig) -> None:
    """Refuses micro-batches that the longest record or unit allowed does not fit into.

    Raises:
        InputError: ``train.micro_batch_tokens`` is less than they may have.
    """
    tokens, longest, records = config.train.micro_batch_tokens, config.task.longest, _least(config)
    if tokens is None:
        return
    if tokens < longest * records:
        whose = "a record"
        if records > 1:
            whose = f"a unit of {records} records (privacy.records_per_unit)"
        raise InputError(
            f"train.micro_batch_tokens must be at least {longest * records}, the tokens of {whose}"
            f" of task.max_length={longest}, got {tokens}; raise it, lower task.max_length, or set"
            " it to null."
        )
    rows = config.train.micro_batch_size
    if isinstance(rows, int) and rows * longest <= tokens:
        logger.warning(
            "train.micro_batch_tokens=%d changes nothing: train.micro_batch_size=%d records of"
            " task.max_length=%d are no more; raise train.micro_batch_size",
            *(tokens, rows, longest),
        )


def with_micro_batch_size(
    config: Config, architecture: Architecture, head: Head, device: torch.device
) -> Config:
    """Returns the configuration with the micro-batch size that ``auto`` stands for.

    Args:
        config: With the length of its examples and its batch size.
        architecture: Of the model.
        head: What it answers with.
        device: Where it is trained.

    Raises:
        InputError: The device's memory is unknown, or not even one record, or unit, fits.
    """
    if config.train.micro_batch_size != AUTO:
        return config
    clips, longest = config.privacy.clips, config.task.longest
    if clips is not None and clips.engine == "loop":
        size = 1
    else:
        size = _largest(config, architecture, head, device)
    logger.info(
        "train.micro_batch_size=%d: records of task.max_length=%d that the memory of the device"
        " holds by the estimate of dpft plan, since auto was asked for",
        *(size, longest),
    )
    return replace(config, train=replace(config.train, micro_batch_size=size))


def planned_model(
    config: TrainConfig, architecture: Architecture, head: Head
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Returns the shapes of the model that would be trained, without weights, and what is new."""
    new = new_names(architecture, head)
    model = meta_model(architecture, head)
    grow_as_planned(model, architecture, head, config.task.special_tokens)
    prepared = config.method.prepare(model, new)
    return with_fused_head(prepared, config, architecture, head), new


def planned_shapes(config: TrainConfig, architecture: Architecture, head: Head) -> ModelShapes:
    """Returns what the cost of a step follows from, of the model that would be trained."""
    positions = None
    layout = layout_of(config.task, architecture, head)
    if not layout.has_lengths:
        positions = record_positions(planned_model(config, architecture, head)[0], layout)
    return model_shapes(
        planned_model(config, architecture, head)[0],
        enters_early=config.method.extra_positions > 0,
        positions=positions,
    )


def _largest(
    config: TrainConfig, architecture: Architecture, head: Head, device: torch.device
) -> int:
    """Returns the largest micro-batch that fits, at most a step's records.

    Raises:
        InputError: As ``with_micro_batch_size``.
    """
    memory, least, train = usable_memory(device), _least(config), config.train
    clips, longest = config.privacy.clips, config.task.longest
    assert train.expected_batch_size is not None
    size = largest_micro_batch(
        planned_shapes(config, architecture, head),
        memory_bytes=memory,
        clipper_bytes=None if clips is None else clips.clipper_memory_mb * 2**20,
        max_length=longest + config.method.extra_positions,
        most=train.expected_batch_size * least,
        micro_batch_tokens=train.micro_batch_tokens,
    )
    if size < least:
        raise InputError(
            f"train.micro_batch_size=auto must hold at least {least} records of"
            f" task.max_length={longest}, got room for {size} in the {memory / 2**30:.1f} GiB that"
            " may be used by the estimate; set a number, lower task.max_length, or choose a"
            " smaller model or method=lora."
        )
    return size


def _least(config: TrainConfig) -> int:
    """Returns the records that must be in one micro-batch: those of a unit are clipped as one."""
    guarantee = config.privacy.guarantee
    has_units = guarantee is not None and guarantee.has_units
    return guarantee.records_per_unit if guarantee is not None and has_units else 1
