"""What the steps of a run take before it has begun: their time; memory is in ``planned_ranks``.

It follows from public numbers alone, the model's shapes, ``task.max_length`` and the configuration,
and from a probe of the machine: of it ``dpft plan`` and a run's first line say the same. Where the
records' owner alone sees it, on a terminal, it may follow their mean length (``own_length``).
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.batches import Layout
from dpft.data.token_rows import TokenRows
from dpft.errors import InputError
from dpft.estimates.step_time import (
    ModelShapes,
    estimate,
    model_shapes,
    probe_machine,
)
from dpft.kinds import Head
from dpft.methods.base import input_embeddings
from dpft.models.architecture import Architecture
from dpft.models.loading import grow_as_planned, meta_model, new_names
from dpft.records.plans import EstimatedTime
from dpft.reports.accounting.plan_table import in_words
from dpft.runs.run_plan import RunPlan
from dpft.runs.spent_epsilon import leading_accountant
from dpft.runs.task_model import layout_of, training_head, with_fused_head
from dpft.startup import PROBING, doing
from dpft.tasks.base import Task, TextualTask
from dpft.training.self_check import synthetic_losses

MATRIX = 2


def record_positions(model: nn.Module, layout: Layout) -> Mapping[str, float] | None:
    """Returns how often a record uses each layer, by the layer's name; None for texts.

    Args:
        model: After ``Method.prepare``, on ``meta``; it is left on fake tensors.
        layout: How rows lie in a batch.
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
    """Refuses micro-batches that the longest record or unit allowed does not fit into.

    Raises:
        InputError: ``train.micro_batch_tokens`` is less than they may have.
    """
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
    grow_as_planned(model, architecture, head, config.task.special_tokens)
    prepared = config.method.prepare(model, new)
    return with_fused_head(prepared, config, architecture, head), new


def planned_shapes(
    config: TrainConfig,
    architecture: Architecture,
    head: Head,
    model: PreTrainedModel | None = None,
) -> ModelShapes:
    """Returns what the cost of a step follows from, of the model that would be trained.

    Args:
        config: As it would run.
        architecture: Of the model.
        head: What it answers with.
        model: What ``planned_model`` returned, where it is there already.
    """
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

    Args:
        config: As it would run.
        plan: Its mechanism and steps.
        architecture: Of the model.
        head: What it answers with.
        typical_length: Of a record in tokens, of ``taken_length``.
        peak_memory_bytes: Of a process, as planned.
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

    Args:
        config: Of the run, as prepared.
        plan: Of the run.
        architecture: Of its model.
        rows: Its records, encoded: on a terminal, which its owner looks at, their mean length is
            what records are taken to have.
        taken: Steps of earlier sessions.
    """
    doing(PROBING)
    is_owners = _is_said_to_owner_alone()
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


def _is_said_to_owner_alone() -> bool:
    """Returns whether log lines go to a terminal and nowhere else, as to a program's log file."""
    handlers = [*logging.getLogger().handlers, *logging.getLogger("dpft").handlers]
    return sys.stderr.isatty() and all(
        isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
        for handler in handlers
    )


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
