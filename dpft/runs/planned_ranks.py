"""What each process of a run would hold and send: the plan of many processes, none of them started.

It needs config.json alone: the model has shapes and no weights.
"""

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from dpft.config.schema import PlanConfig
from dpft.kinds import Head
from dpft.memory import machine_memory
from dpft.models.architecture import Architecture
from dpft.parallel.cutting import check_can_be_sharded
from dpft.parallel.parallel_config import check_shards
from dpft.runs.run_cost import planned_model, planned_shapes
from dpft.runs.sharding import check_sharding
from dpft.runs.task_model import layout_of
from dpft.training.activations import Activations, guessed_activations, trace_activations
from dpft.training.rank_memory import (
    RankShapes,
    StepShapes,
    memory_by_phase,
    peak_of,
    rank_shapes,
)
from dpft.training.rank_traffic import shard_size

GIGABYTE = 10**9
MOST_ROWS = 2**20
"""More than ever fit."""
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
logger = logging.getLogger(__name__)


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

    config: PlanConfig
    """With the length of its records and its micro-batch size."""
    architecture: Architecture
    head: Head
    batch_size: int
    """Records of a step, as expected."""
    device: torch.device

    def record(self) -> dict[str, Any]:
        """Returns memory and traffic under the keys of ``dpft plan output=json``."""
        phases = memory_by_phase(self._shapes, self._step(self._rows))
        phase, parts = peak_of(phases)
        parallel, room = self.config.parallel, self._room
        return {
            "processes": {
                "strategy": parallel.name,
                "world_size": self._processes,
                "shard_size": shard_size(parallel, self._processes),
                "accumulate": parallel.accumulate,
                "engine": self._engine,
            },
            "memory_per_rank_bytes": parts,
            "memory_peak_phase": phase,
            "memory_by_phase_bytes": {name: sum(each.values()) for name, each in phases.items()},
            "bytes_sent_per_step": self._sent(),
            "device_memory_bytes": room,
            "largest_micro_batch": None if room is None else self._largest(room),
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

    @property
    def _length(self) -> int:
        return self.config.task.longest + self.config.method.extra_positions

    @cached_property
    def _engine(self) -> str | None:
        """Of the clipper; None: nothing is clipped."""
        clips = self.config.privacy.clips
        if clips is None:
            return None
        model, _ = planned_model(self.config, self.architecture, self.head)
        if self.config.model.gradient_checkpointing:
            model.activation_checkpointing_enable()
        return clips.clipping_options().resolved(model).engine

    @cached_property
    def _shapes(self) -> RankShapes:
        model, _ = planned_model(self.config, self.architecture, self.head)
        parallel, optimizer = self.config.parallel, self.config.optimizer
        return rank_shapes(model, parallel, self._processes, optimizer)

    @cached_property
    def _activations(self) -> Activations:
        """Of a micro-batch of ``_rows``."""
        config = self.config
        model, _ = planned_model(config, self.architecture, self.head)
        shapes = planned_shapes(config, self.architecture, self.head)
        guessed = guessed_activations(shapes, rows=self._rows, length=self._length)
        try:
            return trace_activations(
                model,
                rows=self._rows,
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
            return guessed

    def _step(self, rows: int) -> StepShapes:
        clips = self.config.privacy.clips
        return StepShapes(
            activations=self._activations.of_rows(rows),
            engine=self._engine,
            memory_mb=0 if clips is None else clips.clipper_memory_mb,
            # A draw of more records than expected may be a micro-batch more.
            micro_batches=self._micro_batches(rows, self.batch_size + 3 * self.batch_size**0.5),
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
    def _room(self) -> int | None:
        """Bytes of a device: as configured, or all that this machine's has."""
        if self.config.plan.device_memory_gb is not None:
            return int(self.config.plan.device_memory_gb * GIGABYTE)
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return machine_memory() if self.device.type == "cpu" else None

    def _largest(self, room: int) -> int:
        """Returns the most records of a micro-batch that fit, 0 for none."""
        fits, too_many = 0, MOST_ROWS
        while too_many - fits > 1:
            rows = (fits + too_many) // 2
            step = replace(self._step(rows), micro_batches=3)
            _, parts = peak_of(memory_by_phase(self._shapes, step))
            fits, too_many = (rows, too_many) if parts["total"] <= room else (fits, rows)
        return fits
