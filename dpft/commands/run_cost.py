"""Memory of a run's processes, the choice of the micro-batch size, and sharding of the model.

The memory is estimated from the shapes of the model (its config.json is enough), from
``task.max_length`` and from the configuration. ``dpft plan`` and ``train.micro_batch_size=auto``
call the same function.
"""

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from dpft.commands.task_model import layout_of
from dpft.config.schema import PlanConfig, TrainConfig
from dpft.constants import Head
from dpft.errors import InputError
from dpft.estimates.activations import Activations, guessed_activations, trace_activations
from dpft.estimates.rank_memory import (
    RankMemory,
    RankShapes,
    StepShapes,
    heap_factor,
    peak_memory,
    rank_shapes,
    shard_size,
)
from dpft.independence_check import check_model
from dpft.machine import usable_memory
from dpft.models.architecture import Architecture
from dpft.models.loading import grow_as_planned, meta_model, new_names
from dpft.parallel.parallel_config import SHARDED, ParallelConfig, check_shards, world
from dpft.parallel.ranks import Ranks, make_grid
from dpft.parallel.sharding import ReadRows, check_can_be_sharded, repeated_blocks
from dpft.parallel.shards import ShardedModel
from dpft.reports.plan_table import PlannedProcesses
from dpft.training.optimizers import check_works_on_shards
from dpft.training.training_config import AUTO

logger = logging.getLogger(__name__)


def check_micro_batch_tokens(config: TrainConfig) -> None:
    """Reject micro-batches that are too small for the longest record or unit allowed."""
    tokens, longest = config.train.micro_batch_tokens, config.task.longest
    records = least_rows(config)
    if tokens is None:
        return
    if tokens < longest * records:
        owner = "a record"
        if records > 1:
            owner = f"a unit of {records} records (privacy.records_per_unit)"
        raise InputError(
            f"train.micro_batch_tokens must be at least {longest * records}, the tokens of {owner}"
            f" of task.max_length={longest}, got {tokens}. Raise it, lower task.max_length, or set"
            " it to null.",
            key="train.micro_batch_tokens",
            value=tokens,
            hint=f"train.micro_batch_tokens={longest * records}",
        )
    rows = config.train.micro_batch_size
    if isinstance(rows, int) and rows * longest <= tokens:
        logger.warning(
            "train.micro_batch_tokens=%d has no effect: train.micro_batch_size=%d records of"
            " task.max_length=%d have no more tokens. Increase train.micro_batch_size.",
            *(tokens, rows, longest),
        )


def planned_model(
    config: TrainConfig, architecture: Architecture, head: Head
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Return the model to train, as shapes without weights, and the names of new parameters."""
    new = new_names(architecture, head)
    model = meta_model(architecture, head)
    check_model(model, as_it_trains=True)
    grow_as_planned(model, architecture, head, config.task.special_tokens)
    return config.method.prepare(model, new), new


def least_rows(config: TrainConfig) -> int:
    """Return the minimum number of records in a micro-batch.

    A micro-batch must have room for all records of a unit, because they are clipped together.
    """
    guarantee = config.privacy.guarantee
    has_units = guarantee is not None and guarantee.has_units
    return guarantee.records_per_unit if guarantee is not None and has_units else 1


def check_sharding(config: TrainConfig) -> None:
    """Reject settings that a sharded model does not support, before anything is read.

    Raises:
        InputError: The optimizer, the loss scale or the audit of the run reads whole parameters.
    """
    if not config.parallel.shards_model:
        return
    check_works_on_shards(config.optimizer)
    needs_all = {
        "audit.white_box": config.audit.white_box,
        "train.adaptive_loss_scale": config.train.adaptive_loss_scale,
    }
    for key in (key for key, is_on in needs_all.items() if is_on):
        raise InputError(
            f"{key}=true needs the whole model in each process, but parallel=fsdp shards it. Use"
            " parallel=ddp, or turn the option off.",
            key=key,
            value=True,
            hint=f"{key}=false",
        )


def shard_model(
    model: nn.Module,
    config: ParallelConfig,
    device: torch.device,
    ranks: Ranks,
    read: ReadRows | None = None,
) -> ShardedModel | None:
    """Shard a model in place, in the same way on every rank; return None if it stays whole.

    ``read`` reads the weights that are still on the meta device, shard by shard. After this call,
    the processes may run the model inside ``failing_together``.
    """
    if not config.shards_model:
        return None
    with ranks.failing_together():
        check_can_be_sharded(model)
    blocks = repeated_blocks(model)
    if not blocks:
        logger.warning(
            "parallel=fsdp: %s has no list of blocks, so each forward pass gathers the whole model",
            type(model).__name__,
        )
    shards = ShardedModel(
        model,
        make_grid(ranks, config.shard_size, device),
        ranks,
        blocks=blocks,
        accumulates_shards=config.accumulate == SHARDED,
        offload=config.cpu_offload and device.type != "cpu",
        read=read,
    )
    ranks.serving_other_ranks = shards.serving_other_ranks
    return shards


def loading_device(config: ParallelConfig, device: torch.device) -> torch.device:
    """Return the device to which a model is loaded: the CPU if the model will be sharded."""
    return torch.device("cpu") if config.shards_model else device


GIGABYTE = 10**9
MOST_ROWS = 2**20
"""Upper limit of the search for a micro-batch size; so many records never fit."""
TRACED_ROWS = 4
"""Number of rows in the traced micro-batch; other sizes are estimated in proportion."""
WITHOUT_A_TRACE = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    NotImplementedError,
    AssertionError,
)
"""Errors that a model may raise when it runs on tensors without values."""
Config = TypeVar("Config", bound=TrainConfig)


def with_micro_batch_size(
    config: Config, architecture: Architecture, head: Head, device: torch.device
) -> Config:
    """Return the configuration with the micro-batch size that ``auto`` selects.

    Raises:
        InputError: The memory of the device is unknown, or not even one record or unit fits.
    """
    if config.train.micro_batch_size != AUTO:
        return config
    size = _fitting(config, architecture, head, device)
    logger.info(
        "train.micro_batch_size: %d records of task.max_length=%d (auto, estimated from the"
        " device's memory)",
        *(size, config.task.longest),
    )
    return config.replace(train=config.train.replace(micro_batch_size=size))


def _fitting(
    config: TrainConfig, architecture: Architecture, head: Head, device: torch.device
) -> int:
    """Return the largest micro-batch size that fits, at most the number of records in a step."""
    least, train, longest = least_rows(config), config.train, config.task.longest
    assert train.expected_batch_size is not None
    most = train.expected_batch_size * least
    ranks = PlannedRanks(
        config=config, architecture=architecture, head=head, batch_size=most, device=device
    )
    room = ranks.room
    if room is None:
        raise InputError(
            f"train.micro_batch_size=auto needs to know the memory of the device ({device.type}),"
            " which the system does not report.",
            key="train.micro_batch_size",
            value=AUTO,
            hint="train.micro_batch_size=32",
        )
    size, tokens = ranks.largest(room), train.micro_batch_tokens
    if tokens is not None and longest <= tokens <= size * longest:
        return most
    if size < least:
        raise InputError(
            f"train.micro_batch_size=auto must hold at least {least} records of"
            f" task.max_length={longest}, but the estimate finds room for {size} in the"
            f" {room / 2**30:.1f} GiB that are available. Set a number, lower task.max_length, or"
            " choose a smaller model or method=lora.",
            key="train.micro_batch_size",
            value=AUTO,
        )
    return min(most, size)


def check_ranks(config: PlanConfig, architecture: Architecture, head: Head) -> None:
    """Reject settings that a run with the planned processes would reject."""
    check_shards(config.parallel, config.parallel.planned_processes)
    check_sharding(config)
    if config.parallel.shards_model:
        model, _ = planned_model(config, architecture, head)
        check_can_be_sharded(model)


@dataclass(frozen=True, kw_only=True)
class PlannedRanks:
    """The processes of a planned run."""

    config: TrainConfig
    """The configuration, in which the length of records is already set."""
    architecture: Architecture
    head: Head
    batch_size: int
    """Expected number of records in a step."""
    device: torch.device

    def costs(self) -> dict[str, Any]:
        """Return the processes and their memory, as fields of ``RunCosts``."""
        parallel, room = self.config.parallel, self.room
        return {
            "processes": PlannedProcesses(
                strategy=parallel.name,
                world_size=self._processes,
                shard_size=shard_size(parallel, self._processes),
                accumulate=parallel.accumulate,
                engine=self._engine,
            ),
            "memory_per_rank_bytes": RankMemory(
                **peak_memory(self._shapes, self._step(self._rows))
            ),
            "device_memory_bytes": room,
            "largest_micro_batch": None if room is None else self.largest(room),
        }

    @property
    def _processes(self) -> int:
        return self.config.parallel.planned_processes

    @property
    def _rows(self) -> int:
        """Number of records in a micro-batch of the longest records."""
        train = self.config.train
        rows, tokens = min(train.most_rows, self.batch_size), train.micro_batch_tokens
        return rows if tokens is None else max(1, min(rows, tokens // self.config.task.longest))

    @cached_property
    def _engine(self) -> str | None:
        """The engine of the clipper; None if nothing is clipped.

        The plan treats ``auto`` as book-keeping. The self-check would choose ``rows`` only for a
        model that book-keeping does not support.
        """
        clips = self.config.privacy.clips
        if clips is None:
            return None
        return "book_keeping" if clips.engine == "auto" else clips.engine

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model to train, without weights."""
        return planned_model(self.config, self.architecture, self.head)[0]

    @cached_property
    def _shapes(self) -> RankShapes:
        parallel, optimizer = self.config.parallel, self.config.optimizer
        return rank_shapes(self.model, parallel, self._processes, optimizer)

    @cached_property
    def _activations(self) -> Activations:
        """The activations of a micro-batch of ``TRACED_ROWS`` rows."""
        config = self.config
        model, _ = planned_model(config, self.architecture, self.head)
        try:
            return trace_activations(
                model,
                rows=TRACED_ROWS,
                length=config.task.longest,
                layout=layout_of(config.task, self.architecture, self.head),
                precision=config.train.precision,
                recomputes=config.model.gradient_checkpointing,
            )
        except WITHOUT_A_TRACE as error:
            kind = type(error).__name__
            logger.warning(
                "activations of %s estimated from the shapes of its layers, because it cannot run"
                " on the meta device (%s)",
                *(type(model).__name__, kind),
            )
        length = config.task.longest + config.method.extra_positions
        return guessed_activations(self.model, rows=TRACED_ROWS, length=length)

    def _step(self, rows: int) -> StepShapes:
        is_glibcs = self.device.type == "cpu" and self._given is None
        return StepShapes(
            activations=self._activations.of_rows(rows),
            engine=self._engine,
            heap=heap_factor(self._shapes) if is_glibcs else 1.0,
            micro_batches=self._micro_batches(rows),
            history=self.config.mechanism.history_numbers
            * -(-self._shapes.trained // self._processes),
        )

    def _micro_batches(self, rows: int) -> int:
        """Return the number of micro-batches of the busiest process in a large draw.

        A large draw is three standard deviations above the expected batch size.
        """
        drawn = self.batch_size + 3 * math.sqrt(self.batch_size)
        return math.ceil(drawn / (rows * self._processes))

    @property
    def _given(self) -> float | None:
        """Configured memory of the planned accelerator in GB; None to plan for this machine."""
        return self.config.plan.device_memory_gb if isinstance(self.config, PlanConfig) else None

    @property
    def room(self) -> int | None:
        """Bytes that each process may use, as configured or on this machine; None if unknown."""
        if self._given is not None:
            return int(self._given * GIGABYTE)
        memory, here = usable_memory(self.device), world()
        if memory is None or self.device.type != "cpu":
            return memory
        return memory // (self._processes if here is None else here.local_size)

    def largest(self, room: int) -> int:
        """Return the largest number of records in a micro-batch that fits; 0 if no record fits."""
        fits, too_many = 0, MOST_ROWS
        while too_many - fits > 1:
            rows = (fits + too_many) // 2
            step = replace(self._step(rows), micro_batches=3)
            fits_too = peak_memory(self._shapes, step)["total"] <= room
            fits, too_many = (rows, too_many) if fits_too else (fits, rows)
        return fits
