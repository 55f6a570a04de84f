"""What a run will take, foretold from public numbers: time of its steps, memory of its ranks.

It follows from the model's shapes (its config.json is enough), ``task.max_length``, the
configuration and a probe of the machine; ``dpft plan``, a run's first line and
``train.micro_batch_size=auto`` ask the same functions, so that they agree. Where the records' owner
alone sees it, on a terminal, the time may follow their mean length (``own_length``).
"""

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from dpft.batch_mixing import check_model
from dpft.config.schema import PlanConfig, TrainConfig
from dpft.data.batches import Layout
from dpft.data.encoding import TokenRows
from dpft.errors import InputError
from dpft.estimates.activations import Activations, guessed_activations, trace_activations
from dpft.estimates.rank_memory import (
    RankShapes,
    StepShapes,
    heap_factor,
    memory_by_phase,
    peak_of,
    rank_shapes,
    shard_size,
)
from dpft.estimates.step_time import ModelShapes, estimate, model_shapes, probe_machine
from dpft.kinds import Head
from dpft.machine import usable_memory
from dpft.methods.base import input_embeddings
from dpft.models.architecture import Architecture
from dpft.models.loading import checkpoint_activations, grow_as_planned, meta_model, new_names
from dpft.parallel.cutting import ReadRows, check_can_be_sharded, repeated_blocks
from dpft.parallel.parallel_config import SHARDED, ParallelConfig, check_shards, world
from dpft.parallel.ranks import Ranks, make_grid
from dpft.parallel.shards import ShardedModel
from dpft.records.plans import EstimatedTime, PlannedProcesses, RankMemory
from dpft.reports.plan_table import in_words
from dpft.runs.run_plan import RunPlan, leading_accountant
from dpft.runs.task_model import layout_of, training_head, with_fused_head
from dpft.startup import PROBING, doing
from dpft.tasks.base import Task, TextualTask
from dpft.training.optimizers import check_works_on_shards
from dpft.training.self_check import synthetic_losses
from dpft.training.training_config import AUTO

MATRIX = 2


def record_positions(model: nn.Module, layout: Layout) -> Mapping[str, float] | None:
    """Returns how often a record uses each layer, by the layer's name; None for texts.

    The model, after ``Method.prepare``, is on ``meta`` and is left on fake tensors.
    """
    if layout.has_lengths:
        return None
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model.to_empty(device="cpu")
    found: dict[str, float] = {}

    def watch(name: str, module: nn.Module, weight: Tensor) -> Any:
        def called(_: nn.Module, given: Any, outcome: Any) -> None:
            if isinstance(outcome, Tensor):
                found[name] = found.get(name, 0.0) + outcome.numel() / len(weight)

        return module.register_forward_hook(called)

    matrices = {
        name: (module, parameter)
        for name, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if own == "weight" and parameter.dim() >= MATRIX
    }
    handles = [watch(name, module, weight) for name, (module, weight) in matrices.items()]
    losses = synthetic_losses(model, 1, 1, layout=layout)
    with fake:
        losses()
    for handle in handles:
        handle.remove()
    return found


LEAST_PROBED = 1024
"""Rows of the product by which the machine is probed: of fewer, its calls would be timed."""
logger = logging.getLogger(__name__)


def check_micro_batch_tokens(config: TrainConfig) -> None:
    """Refuses micro-batches that the longest record or unit allowed does not fit into."""
    tokens, longest = config.train.micro_batch_tokens, config.task.longest
    records = least_rows(config)
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


def planned_model(
    config: TrainConfig, architecture: Architecture, head: Head
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Returns the shapes of the model that would be trained, without weights, and what is new."""
    new = new_names(architecture, head)
    model = meta_model(architecture, head)
    check_model(model, as_it_trains=True)
    grow_as_planned(model, architecture, head, config.task.special_tokens)
    prepared = config.method.prepare(model, new)
    return with_fused_head(prepared, config, architecture, head), new


def planned_shapes(
    config: TrainConfig,
    architecture: Architecture,
    head: Head,
    model: PreTrainedModel | None = None,
) -> ModelShapes:
    """Returns what the cost of a step follows from, of the model that would be trained."""
    positions = None
    layout = layout_of(config.task, architecture, head)
    if not layout.has_lengths:
        positions = record_positions(planned_model(config, architecture, head)[0], layout)
    return model_shapes(
        planned_model(config, architecture, head)[0] if model is None else model,
        enters_early=config.method.extra_positions > 0,
        positions=positions,
    )


def estimated_cost(
    config: TrainConfig,
    plan: RunPlan,
    architecture: Architecture,
    head: Head,
    *,
    typical_length: int,
    peak_memory_bytes: int = 0,
) -> EstimatedTime:
    """Returns the time of a run's steps, from a probe of the machine and the model's shapes.

    Of many processes it is the time of one with its share of the records, without the network's.
    """
    device, settings = config.train.prepare(), config.train
    clips = config.privacy.clips
    processes = config.parallel.planned_processes
    batch_size = -(-settings.batch_size(plan.size.num_examples) // processes)
    size = min(settings.most_rows, batch_size)
    model, _ = planned_model(config, architecture, head)
    speed = probe_machine(
        device,
        width=_width(model),
        tokens=max(size * config.task.longest, LEAST_PROBED),
        options=clips.clipping_options(settings.backward_scale) if clips else None,
        precision=settings.precision,
    )
    return estimate(
        planned_shapes(config, architecture, head, model),
        speed,
        private=clips is not None,
        typical_length=typical_length,
        micro_batch_size=settings.most_rows,
        expected_batch_size=batch_size,
        steps=plan.steps,
        peak_memory_bytes=peak_memory_bytes,
    )


def foretell(
    config: TrainConfig,
    plan: RunPlan,
    architecture: Architecture,
    rows: Sequence[Any],
    *,
    taken: int,
) -> float:
    """Returns the seconds that the steps of a run will take, and logs them.

    ``taken`` are steps of earlier sessions; the mean length of the encoded records (``rows``) is
    what records are taken to have on a terminal, which their owner looks at.
    """
    doing(PROBING)
    handlers = [*logging.getLogger().handlers, *logging.getLogger("dpft").handlers]
    is_owners = sys.stderr.isatty() and all(
        isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
        for handler in handlers
    )
    found = estimated_cost(
        config,
        plan,
        architecture,
        training_head(config, architecture),
        typical_length=taken_length(config.task, own_length(rows) if is_owners else None),
    )
    seconds = found.seconds_total * (plan.steps - taken) / plan.steps
    length = "" if is_owners else f", records of {found.typical_length} tokens"
    epsilon = ""
    if plan.privacy is not None:
        epsilon = f"; epsilon is the upper bound by {leading_accountant(config, plan.privacy)}"
    logger.info(
        "training takes about %s by an estimate (%d steps%s)%s",
        *(in_words(seconds), plan.steps - taken, length, epsilon),
    )
    return seconds


def taken_length(task: Task, measured: int | None) -> int:
    """Returns how long a record is taken to be: as the task states, else as measured, in tokens."""
    states = isinstance(task, TextualTask) and task.typical_length is not None
    return task.typical if states or measured is None else measured


def own_length(rows: Sequence[Any]) -> int | None:
    """Returns the mean length of encoded records in tokens, private; None where they have none.

    It has two digits, as all that a terminal shows its owner of private records.
    """
    if not isinstance(rows, TokenRows) or not len(rows):
        return None
    return max(1, round(float(f"{rows.lengths.mean():.2g}")))


def _width(model: nn.Module) -> int:
    """Returns the width that a probe's product has: that of what a token, or a patch, becomes."""
    tables = [table for table in input_embeddings(model) if table.dim() > 1]
    if not tables:  # convolutions alone
        return max(len(weight) for weight in model.parameters() if weight.dim() > 1)
    return max(int(table.shape[-1] if table.dim() == 2 else len(table)) for table in tables)


def least_rows(config: TrainConfig) -> int:
    """Returns the records that must be in one micro-batch: those of a unit are clipped as one."""
    guarantee = config.privacy.guarantee
    has_units = guarantee is not None and guarantee.has_units
    return guarantee.records_per_unit if guarantee is not None and has_units else 1


def check_sharding(config: TrainConfig) -> None:
    """Refuses what does not go with a sharded model, before anything is read.

    Raises:
        InputError: The run's optimizer, its loss scale or its audit reads whole parameters.
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
            f"{key}=true needs the whole model in each process, got parallel=fsdp; set {key}=false,"
            " or parallel=ddp."
        )


def cut(
    model: nn.Module,
    config: ParallelConfig,
    device: torch.device,
    ranks: Ranks,
    read: ReadRows | None = None,
) -> ShardedModel | None:
    """Cuts a model in place, the same on every rank; None where it is to stay whole.

    What of the model is on the meta device ``read`` reads, in shards. From now on the processes may
    run the model inside ``settled``.
    """
    if not config.shards_model:
        return None
    with ranks.settled():
        check_can_be_sharded(model)
    blocks = repeated_blocks(model)
    if not blocks:
        logger.warning(
            "parallel=fsdp: %s has no list of blocks, so that all of it is gathered to be run",
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
    ranks.served = shards.served
    return shards


def loading_device(config: ParallelConfig, device: torch.device) -> torch.device:
    """Returns where a model is loaded to: one that is cut goes to its device in shards."""
    return torch.device("cpu") if config.shards_model else device


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


def with_micro_batch_size(
    config: Config, architecture: Architecture, head: Head, device: torch.device
) -> Config:
    """Returns the configuration with the micro-batch size that ``auto`` stands for.

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
    """Returns the largest micro-batch that fits, at most a step's records."""
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
    """Refuses what a run of these processes would refuse."""
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
        return rank_shapes(self._model, parallel, self._processes, optimizer)

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
        is_glibcs = self.device.type == "cpu" and self._given is None
        return StepShapes(
            activations=self._activations.of_rows(rows),
            engine=self._engine,
            memory_mb=0 if clips is None else clips.clipper_memory_mb,
            heap=heap_factor(self._shapes) if is_glibcs else 1.0,
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
