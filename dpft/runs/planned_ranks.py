"""What each process of a run would hold and send, and so the micro-batch that fits, before it runs.

It needs config.json alone: the model has shapes and no weights. ``dpft plan`` and
``train.micro_batch_size=auto`` ask the same function (``rank_memory``), so that they agree.
"""

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from dpft.config.schema import PlanConfig, TrainConfig
from dpft.errors import InputError
from dpft.estimates.activations import Activations, guessed_activations, trace_activations
from dpft.estimates.rank_memory import (
    HEAP,
    RankShapes,
    StepShapes,
    memory_by_phase,
    peak_of,
    rank_shapes,
    shard_size,
)
from dpft.kinds import Head
from dpft.memory import usable_memory
from dpft.models.architecture import Architecture
from dpft.models.loading import checkpoint_activations
from dpft.parallel.cutting import check_can_be_sharded
from dpft.parallel.parallel_config import check_shards, world
from dpft.records.plans import PlannedProcesses, RankMemory
from dpft.runs.run_cost import least_rows, planned_model, planned_shapes
from dpft.runs.sharding import check_sharding
from dpft.runs.task_model import layout_of
from dpft.training.training_config import AUTO

GIGABYTE = 10**9
MOST_ROWS = 2**20
"""More than ever fit."""
TRACED_ROWS = 4
"""Of the micro-batch that is traced; one of other rows keeps in proportion."""
WITHOUT_A_TRACE = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    NotImplementedError,
    AssertionError,
)
"""What a model may raise on tensors without values."""
Config = TypeVar("Config", bound=TrainConfig)
logger = logging.getLogger(__name__)


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
        size = _fitting(config, architecture, head, device)
    logger.info(
        "train.micro_batch_size=%d: records of task.max_length=%d that the memory of the device"
        " holds by the estimate of dpft plan, since auto was asked for",
        *(size, longest),
    )
    return replace(config, train=replace(config.train, micro_batch_size=size))


def _fitting(
    config: TrainConfig, architecture: Architecture, head: Head, device: torch.device
) -> int:
    """Returns the largest micro-batch that fits, at most a step's records.

    Raises:
        InputError: As ``with_micro_batch_size``.
    """
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
            " which the system does not say; set a number, such as 32."
        )
    size, tokens = ranks.largest(room), train.micro_batch_tokens
    if tokens is not None and longest <= tokens <= size * longest:
        return most
    if size < least:
        raise InputError(
            f"train.micro_batch_size=auto must hold at least {least} records of"
            f" task.max_length={longest}, got room for {size} in the {room / 2**30:.1f} GiB that"
            " may be used by the estimate; set a number, lower task.max_length, or choose a"
            " smaller model or method=lora."
        )
    return min(most, size)


def check_ranks(config: PlanConfig, architecture: Architecture, head: Head) -> None:
    """Refuses what a run of these processes would refuse.

    Raises:
        InputError: The processes make no whole replicas, or the model cannot be cut.
    """
    check_shards(config.parallel, config.parallel.planned_processes)
    check_sharding(config)
    if config.parallel.shards_model:
        model, _ = planned_model(config, architecture, head)
        check_can_be_sharded(model)


@dataclass(frozen=True, kw_only=True)
class PlannedRanks:
    """The processes of a run that is planned."""

    config: TrainConfig
    """With the length of its records."""
    architecture: Architecture
    head: Head
    batch_size: int
    """Records of a step, as expected."""
    device: torch.device

    def costs(self) -> dict[str, Any]:
        """Returns memory and traffic, as fields of ``RunCosts``."""
        phases = memory_by_phase(self._shapes, self._step(self._rows))
        phase, parts = peak_of(phases)
        parallel, room = self.config.parallel, self.room
        return {
            "processes": PlannedProcesses(
                strategy=parallel.name,
                world_size=self._processes,
                shard_size=shard_size(parallel, self._processes),
                accumulate=parallel.accumulate,
                engine=self._engine,
            ),
            "memory_per_rank_bytes": RankMemory(**parts),
            "memory_peak_phase": phase,
            "memory_by_phase_bytes": {name: sum(each.values()) for name, each in phases.items()},
            "bytes_sent_per_step": self._sent(),
            "device_memory_bytes": room,
            "largest_micro_batch": None if room is None else self.largest(room),
        }

    @property
    def _processes(self) -> int:
        return self.config.parallel.planned_processes

    @property
    def _rows(self) -> int:
        """Records of a micro-batch of longest ones."""
        train = self.config.train
        rows, tokens = min(train.most_rows, self.batch_size), train.micro_batch_tokens
        return rows if tokens is None else max(1, min(rows, tokens // self.config.task.longest))

    @cached_property
    def _engine(self) -> str | None:
        """Of the clipper; None: nothing is clipped."""
        clips = self.config.privacy.clips
        if clips is None:
            return None
        if self.config.model.gradient_checkpointing:
            checkpoint_activations(self._model)
        return clips.clipping_options().resolved(self._model).engine

    @cached_property
    def _model(self) -> PreTrainedModel:
        return planned_model(self.config, self.architecture, self.head)[0]

    @cached_property
    def _shapes(self) -> RankShapes:
        parallel, optimizer = self.config.parallel, self.config.optimizer
        averages = self.config.train.averaging is not None
        return rank_shapes(self._model, parallel, self._processes, optimizer, averages=averages)

    @cached_property
    def _activations(self) -> Activations:
        """Of a micro-batch of ``TRACED_ROWS``."""
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
                "the activations of %s are guessed from its layers' shapes: it does not run without"
                " values (%s)",
                *(type(model).__name__, kind),
            )
        length = config.task.longest + config.method.extra_positions
        shapes = planned_shapes(config, self.architecture, self.head)
        return guessed_activations(shapes, rows=TRACED_ROWS, length=length)

    def _step(self, rows: int) -> StepShapes:
        clips = self.config.privacy.clips
        return StepShapes(
            activations=self._activations.of_rows(rows),
            engine=self._engine,
            memory_mb=0 if clips is None else clips.clipper_memory_mb,
            heap=HEAP if self.device.type == "cpu" and self._given is None else 1.0,
            # A draw of more records than expected may be a micro-batch more.
            micro_batches=self._micro_batches(rows, self.batch_size + 3 * self.batch_size**0.5),
            history=self.config.mechanism.history_numbers
            * -(-self._shapes.trained // self._processes),
        )

    def _micro_batches(self, rows: int, drawn: float) -> int:
        """Returns how many micro-batches the busiest process has."""
        return math.ceil(drawn / (rows * self._processes))

    def _sent(self) -> int:
        return self._shapes.traffic.bytes_per_step(
            engine=self._engine,
            micro_batches=self._micro_batches(self._rows, self.batch_size),
            drawn=self.batch_size,
        )

    @property
    def _given(self) -> float | None:
        """Gigabytes of the accelerator that is planned for; None: it is this machine."""
        return self.config.plan.device_memory_gb if isinstance(self.config, PlanConfig) else None

    @property
    def room(self) -> int | None:
        """Bytes that a process may plan with, as configured or of this machine; None: unknown."""
        if self._given is not None:
            return int(self._given * GIGABYTE)
        memory, here = usable_memory(self.device), world()
        if memory is None or self.device.type != "cpu":
            return memory
        return memory // (self._processes if here is None else here.local_size)

    def largest(self, room: int) -> int:
        """Returns the most records of a micro-batch that fit, 0 for none."""
        fits, too_many = 0, MOST_ROWS
        while too_many - fits > 1:
            rows = (fits + too_many) // 2
            step = replace(self._step(rows), micro_batches=3)
            _, parts = peak_of(memory_by_phase(self._shapes, step))
            fits, too_many = (rows, too_many) if parts["total"] <= room else (fits, rows)
        return fits
