"""Plans of runs: noise, steps, time and memory of a run, without training (``dpft plan``).

A plan needs only the config.json of a model. Local data are read only to count them, and only if no
public number is configured.
"""

import functools
import logging
from dataclasses import dataclass, replace

from dpft.commands.composition import cost_together
from dpft.commands.run_cost import (
    MOST_ROWS,
    PlannedRanks,
    check_micro_batch_tokens,
    check_ranks,
    least_rows,
    planned_model,
    with_micro_batch_size,
)
from dpft.commands.run_plan import (
    RunPlan,
    leading_accountant,
    noise_beside_independent,
    plan_run,
    say_default_method,
    steps_plan,
    warn_of_delta,
    warn_of_noise,
    with_batch_size,
)
from dpft.commands.splits import (
    load_training_data,
)
from dpft.commands.task_model import fitted_to, layout_of, prepare_model, training_head
from dpft.config.schema import PlanConfig, PlanSettings
from dpft.methods.base import count_parameters
from dpft.methods.lora import Lora, changed_layers
from dpft.models.architecture import read_architecture
from dpft.parallel.parallel_config import ParallelConfig
from dpft.privacy.accounting.interpretation import signal_share
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.privacy.ledger import Noise
from dpft.reports.plan_table import OpenPlan, PlannedLora, PrivatePlan, RunCosts
from dpft.reports.privacy_record import (
    no_promise,
    promise_of,
)
from dpft.strict_model import merge_models
from dpft.training.step_time import MeasuredTime, measure_step

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A planned run, which has not begun."""

    plan: RunPlan
    accounting: AccountingReport | None
    """The privacy cost of the planned steps; None for a non-private run."""
    record: PrivatePlan | OpenPlan
    """The guarantee and the cost of the run, as ``output=json`` prints them."""


def describe_run(config: PlanConfig) -> PlannedRun:
    """Return the plan and the cost of ``dpft train`` with the same configuration.

    Raises:
        InputError: Training would reject the configuration.
    """
    # 1. Determined by the model's config.json: lengths and head.
    say_default_method(config)
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = training_head(config, architecture)
    check_micro_batch_tokens(config)
    check_ranks(config, architecture, head)

    # 2. The plan, made as in training, with every null of the configuration filled in. The data are
    # read once, and only if no public number is configured.
    count_units = functools.cache(lambda: load_training_data(config).num_units)
    config = with_batch_size(config, count_units)
    device = config.train.prepare()
    config = with_micro_batch_size(config, architecture, head, device)
    plan = plan_run(config, count_units)
    private = plan.privacy
    if private is not None:
        config = config.replace(mechanism=config.mechanism.resolved(private.mechanism))

    # 3. Parameters, time and memory of a model without weights.
    ranks = PlannedRanks(
        config=config,
        architecture=architecture,
        head=head,
        batch_size=config.train.batch_size(plan.size.num_examples),
        device=device,
    )
    measured = measure(config, plan, ranks) if config.plan.measure else None
    model, new = planned_model(config, architecture, head)
    parameters = count_parameters(model, new)
    lora = None
    if isinstance(config.method, Lora):
        layers = changed_layers(model)
        lora = PlannedLora(
            rank=config.method.rank,
            scale=next(iter(layers.values())).scaling["default"],
            layers=len(layers),
            targets=tuple(sorted({name.rpartition(".")[2] for name in layers})),
        )
    costs = merge_models(
        RunCosts,
        parameters=parameters,
        **ranks.costs(),
        num_examples_source=plan.size.source,
        micro_batch_size=config.train.most_rows,
        measured=measured,
        lora=lora,
    )

    # 4. The guarantee, and warnings if it is weak.
    accounting = account_for_plan(config, plan)
    if private is None or accounting is None:
        record = merge_models(OpenPlan, no_promise(steps_plan(config, plan)), costs)
        return PlannedRun(plan=plan, accounting=None, record=record)
    warn_of_delta(private)
    warn_of_noise(private, parameters.trainable)
    promise = promise_of(private, accounting, trainable_parameters=parameters.trainable)
    with_tokenizer = None
    if private.tokenizer is not None:
        noise = Noise(noise_multiplier=private.noise_multiplier, sample_rate=private.sample_rate)
        with_tokenizer = cost_together(
            {noise: private.event().steps},
            epsilon=promise.epsilon,
            delta=private.delta,
            before=private.tokenizer,
        )
    signal_to_noise = signal_share(
        private.as_independent(),
        expected_batch_size=private.expected_batch_size,
        trainable_parameters=parameters.trainable,
    )
    return PlannedRun(
        plan=plan,
        accounting=accounting,
        record=merge_models(
            PrivatePlan,
            promise,
            costs,
            with_tokenizer=with_tokenizer,
            signal_to_noise=signal_to_noise,
            noise_in_last_weights=noise_beside_independent(config, plan),
        ),
    )


def account_for_plan(config: PlanConfig, plan: RunPlan) -> AccountingReport | None:
    """Return the privacy cost of the planned steps; None for a non-private run."""
    if plan.privacy is None:
        return None
    return account(plan.privacy.event(), accountant=leading_accountant(config, plan.privacy))


MOST_ON_A_CPU = 5 * 10**10
"""Limit for the number of parameters times the number of tokens of an example. Above this limit,
even one example takes minutes on a CPU."""


def measure(config: PlanConfig, plan: RunPlan, ranks: PlannedRanks) -> MeasuredTime | None:
    """Measure the time of the steps in this process, on a model with random weights.

    The measurement assumes that each process has an equal share of the examples. If this machine
    cannot hold the model or a single example would take too long, log the reason and return
    ``None``.
    """
    one_process = config.replace(parallel=ParallelConfig(), plan=PlanSettings())
    here = replace(ranks, config=one_process)
    memory, length = here.room, config.task.typical
    largest = MOST_ROWS if memory is None else here.largest(memory)
    num_parameters = sum(parameter.numel() for parameter in here.model.parameters())
    reason = None
    if config.model.is_quantized:
        reason = f"model.quantization={config.model.quantization} needs the model's weights"
    elif not largest:
        reason = "this machine has not enough memory for the model"
    elif ranks.device.type == "cpu" and num_parameters * length > MOST_ON_A_CPU:
        reason = "a single example takes too long on a CPU"
    if reason is not None:
        logger.info("time not measured: %s", reason)
        return None
    random_weights = ranks.architecture.model.replace(init="random")
    untrained = replace(ranks.architecture, model=random_weights)
    model, _ = prepare_model(config, untrained, ranks.head, planned=True)
    model.to(ranks.device)  # type: ignore[arg-type]
    clips, clipping, train = config.privacy.clips, plan.clipping, config.train
    rows = min(train.most_rows, largest)
    if train.micro_batch_tokens is not None:
        rows = max(1, min(rows, train.micro_batch_tokens // length))
    examples = train.batch_size(plan.size.num_examples) * least_rows(config)
    clipped = None
    if clips is not None and clipping is not None:
        clipped = clipping, clips.clipping_options(train.backward_scale)
    return measure_step(
        model,
        length=length,
        micro_batch_size=rows,
        expected_batch_size=-(-examples // config.parallel.planned_processes),
        steps=plan.steps,
        clipped=clipped,
        optimizer=config.optimizer,
        layout=layout_of(config.task, ranks.architecture, ranks.head),
        precision=train.precision,
    )
