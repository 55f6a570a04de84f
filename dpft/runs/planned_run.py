"""What a run would do and cost, without training.

Needs no more of a model than its config.json; reads local data only to count it where no public
number is configured.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpft.config.schema import PlanConfig
from dpft.kinds import Head
from dpft.methods.base import count_parameters, input_embeddings
from dpft.models.architecture import Architecture, read_architecture
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.reports.run.privacy_record import non_private_record, parameter_record, plan_record
from dpft.runs.micro_batch_size import (
    check_micro_batch_tokens,
    planned_model,
    planned_shapes,
    with_micro_batch_size,
)
from dpft.runs.planned_ranks import PlannedRanks, check_ranks
from dpft.runs.run_plan import (
    RunPlan,
    plan_run,
    warn_of_delta,
    warn_of_noise,
    with_batch_size,
)
from dpft.runs.spending.with_tokenizer import planned_with_tokenizer
from dpft.runs.task_model import fitted_to, layout_of, prepare_model, training_head
from dpft.runs.training_data import load_training_data
from dpft.training.compiling import check_compiler
from dpft.training.estimate import Estimate, estimate
from dpft.training.measure import Measurement, measure_step
from dpft.training.probe import probe_machine

LEAST_PROBED = 1024
"""Rows of the product by which the machine is probed: of fewer, its calls would be timed."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that was not begun."""

    plan: RunPlan
    accounting: AccountingReport | None
    """What its steps cost; None for a non-private run."""
    record: Mapping[str, Any]
    """The plan under the keys of privacy.json, ready for JSON."""


def describe_run(config: PlanConfig) -> PlannedRun:
    """Returns what ``dpft train`` with the same configuration would do and cost.

    Raises:
        InputError: As ``dpft train`` would raise it.
    """
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = training_head(config, architecture)
    check_micro_batch_tokens(config)
    check_ranks(config, architecture, head)
    # Read once, and only where no public number is configured.
    count = functools.cache(lambda: load_training_data(config).num_units)
    config = with_batch_size(config, count)
    device = config.train.prepare()
    check_compiler(device, wanted=config.train.compile)
    config = with_micro_batch_size(config, architecture, head, device)
    plan = plan_run(config, count)
    accounting = account_for_plan(config, plan)
    record = describe(config, plan, accounting, architecture, head)
    record["micro_batch_size"] = config.train.most_rows
    record |= PlannedRanks(
        config=config,
        architecture=architecture,
        head=head,
        batch_size=config.train.batch_size(plan.size.num_examples),
        device=device,
    ).record()
    if config.plan.measure:
        record["measured"] = dataclasses.asdict(measure(config, plan, architecture, head))
    else:
        peak = record["memory_per_rank_bytes"]["total"]
        estimated = probe(config, plan, architecture, head, peak_memory_bytes=peak)
        record["estimated"] = dataclasses.asdict(estimated)
    if plan.privacy is not None:
        warn_of_delta(plan.privacy)
        warn_of_noise(plan.privacy, record["trainable_parameters"])
    return PlannedRun(plan=plan, accounting=accounting, record=record)


def account_for_plan(config: PlanConfig, plan: RunPlan) -> AccountingReport | None:
    """Returns what the planned steps cost; None for a non-private run."""
    guarantee = config.privacy.guarantee
    if plan.privacy is None or guarantee is None:
        return None
    return account(plan.privacy.mechanism(), accountant=guarantee.accountant)


def describe(
    config: PlanConfig,
    plan: RunPlan,
    accounting: AccountingReport | None,
    architecture: Architecture,
    head: Head,
) -> dict[str, Any]:
    """Returns the plan under the keys of privacy.json (docs/design.md, the run's folder)."""
    counts = count_parameters(*planned_model(config, architecture, head))
    if plan.privacy is not None and accounting is not None:
        record = plan_record(plan.privacy, accounting, trainable_parameters=counts.trainable)
        record |= planned_with_tokenizer(config, plan.privacy, record)
    else:
        record = non_private_record(
            num_examples=plan.size.num_examples,
            expected_batch_size=config.train.batch_size(plan.size.num_examples),
            steps=plan.steps,
            clipping=plan.unnoised,
        )
    return record | {"num_examples_source": plan.size.source, **parameter_record(counts)}


def probe(
    config: PlanConfig,
    plan: RunPlan,
    architecture: Architecture,
    head: Head,
    *,
    peak_memory_bytes: int,
) -> Estimate:
    """Estimates time from a probe of the machine and the model's shapes.

    Of many processes it is the time of one with its share of the records, without the network's.

    Args:
        config: As it would run.
        plan: Its mechanism and steps.
        architecture: Of the model.
        head: What it answers with.
        peak_memory_bytes: Of a process, as planned.
    """
    device, settings = config.train.prepare(), config.train
    model, _ = planned_model(config, architecture, head)
    width = _width(model)
    shapes = planned_shapes(config, architecture, head)
    clips = config.privacy.clips
    processes = config.parallel.planned_processes
    batch_size = -(-settings.batch_size(plan.size.num_examples) // processes)
    size = min(settings.most_rows, batch_size)
    speed = probe_machine(
        device,
        width=width,
        tokens=max(size * config.task.longest, LEAST_PROBED),
        options=clips.clipping_options(settings.backward_scale) if clips else None,
        precision=settings.precision,
    )
    return estimate(
        shapes,
        speed,
        private=clips is not None,
        max_length=config.task.longest,
        micro_batch_size=settings.most_rows,
        expected_batch_size=batch_size,
        steps=plan.steps,
        peak_memory_bytes=peak_memory_bytes,
    )


def _width(model: nn.Module) -> int:
    """Returns the width that a probe's product has: that of what a token, or a patch, becomes."""
    tables = [table for table in input_embeddings(model) if table.dim() > 1]
    if not tables:  # convolutions alone
        return max(len(weight) for weight in model.parameters() if weight.dim() > 1)
    return max(int(table.shape[-1] if table.dim() == 2 else len(table)) for table in tables)


def measure(
    config: PlanConfig, plan: RunPlan, architecture: Architecture, head: Head
) -> Measurement:
    """Times one micro-batch of a model with random weights, so that none are fetched."""
    device = config.train.prepare()
    fresh = dataclasses.replace(architecture.model, init="random")
    untrained = dataclasses.replace(architecture, model=fresh)
    model, _ = prepare_model(config, untrained, head, planned=True)
    model.to(device)  # type: ignore[arg-type]
    clips = config.privacy.clips
    return measure_step(
        model,
        max_length=config.task.longest,
        micro_batch_size=config.train.most_rows,
        expected_batch_size=config.train.batch_size(plan.size.num_examples),
        steps=plan.steps,
        options=clips.clipping_options(config.train.backward_scale) if clips else None,
        layout=layout_of(config.task, architecture, head),
        precision=config.train.precision,
    )
