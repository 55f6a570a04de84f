"""``dpft plan``: what a run would do and cost, without training.

Needs no more of a model than its config.json; reads local data only to count it where no public
number is configured.
"""

import dataclasses
import functools
import logging
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dpft.config.schema import PlanConfig
from dpft.data.batches import Layout
from dpft.errors import InputError
from dpft.head_losses import losses_added_up
from dpft.kinds import Head
from dpft.methods.base import count_parameters
from dpft.methods.lora import Lora, changed_layers
from dpft.models.architecture import Architecture, read_architecture
from dpft.privacy.accounting.interpretation import signal_share
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.records.form import joined
from dpft.records.plans import (
    MeasuredTime,
    OpenPlan,
    PlannedLora,
    PrivatePlan,
    RankMemory,
    RunCosts,
)
from dpft.reports.privacy_record import no_promise, parameters_of, promise_of
from dpft.runs.composition import planned_with_tokenizer
from dpft.runs.held_out import load_training_data
from dpft.runs.modality import modality_of
from dpft.runs.run_cost import (
    PlannedRanks,
    check_micro_batch_tokens,
    check_ranks,
    estimated_cost,
    own_length,
    planned_model,
    taken_length,
    with_micro_batch_size,
)
from dpft.runs.run_plan import (
    COUNTED,
    RunPlan,
    noise_beside_independent,
    plan_run,
    say_default_method,
    warn_of_delta,
    warn_of_noise,
    with_batch_size,
)
from dpft.runs.task_model import encoding_of, fitted_to, layout_of, prepare_model, training_head
from dpft.tasks.base import Record
from dpft.training.self_check import CAUSAL_TEXT, synthetic_losses
from dpft.training.training_config import autocast

logger = logging.getLogger(__name__)


def measure_step(
    model: nn.Module,
    *,
    max_length: int,
    typical_length: int,
    micro_batch_size: int,
    expected_batch_size: int,
    steps: int,
    options: ClippingOptions | None,
    layout: Layout = CAUSAL_TEXT,
    precision: str = "fp32",
) -> MeasuredTime:
    """Times a micro-batch of records of a typical length, and the noise of a step.

    One of the longest records comes first, for the memory that it takes; what a clipper proves on
    its first micro-batches is in neither.

    The model is prepared for training and on its device; lengths are in tokens; ``options`` are
    what training clips with, None for ordinary gradients.
    """
    size = min(micro_batch_size, expected_batch_size)
    device = next(model.parameters()).device

    def losses_of(length: int) -> Callable[[], Tensor]:
        synthetic = synthetic_losses(model, size, length, layout=layout, ragged=False)

        def compute_losses() -> Tensor:
            with autocast(precision, device):
                return synthetic()

        return compute_losses

    model.train()
    longest, typical = losses_of(max_length), losses_of(typical_length)
    if options is None:
        with losses_added_up():
            torch.autograd.backward(longest().sum())
            per_batch = _timed(lambda: torch.autograd.backward(typical().sum()))
        noise = 0.0
    else:
        with options.make(model) as clipper:
            clipper.accumulate(longest)
            per_batch = _timed(lambda: clipper.accumulate(typical))
        trained = [p for p in model.parameters() if p.requires_grad]
        noise = _timed(lambda: add_noise(trained, 1.0, make_randomness(device).noise))
    per_step = per_batch * expected_batch_size / size + noise
    return MeasuredTime(
        seconds_per_step=per_step,
        seconds_total=per_step * steps,
        peak_memory_bytes=peak_memory(device),
        typical_length=typical_length,
    )


def _timed(work: Callable[[], object]) -> float:
    """Returns the seconds of the second of two runs; the first one warms up."""
    work()
    _wait()
    start = time.monotonic()
    work()
    _wait()
    return time.monotonic() - start


def _wait() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def peak_memory(device: torch.device) -> int:
    """Returns the most bytes that the accelerator, or else this process, has had so far."""
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


SAMPLE = 256
"""Records of one's own that are read for their length, evenly spaced."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that was not begun."""

    plan: RunPlan
    accounting: AccountingReport | None
    """What its steps cost; None for a non-private run."""
    record: PrivatePlan | OpenPlan
    """What it promises and costs."""


def describe_run(config: PlanConfig, *, is_shown: bool = False) -> PlannedRun:
    """Returns what ``dpft train`` with the same configuration would do and cost.

    Args:
        config: As ``dpft train`` would have it.
        is_shown: The plan goes to its owner's terminal alone, so that the estimate of time may
            follow the lengths of the owner's records.
    """
    say_default_method(config)
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = training_head(config, architecture)
    check_micro_batch_tokens(config)
    check_ranks(config, architecture, head)
    # Read once, and only where no public number is configured.
    data = functools.cache(lambda: load_training_data(config))

    def count() -> int:
        return data().num_units

    config = with_batch_size(config, count)
    device = config.train.prepare()
    config = with_micro_batch_size(config, architecture, head, device)
    plan = plan_run(config, count)
    if plan.privacy is not None:
        settled = config.mechanism.settled(plan.privacy.mechanism)
        config = dataclasses.replace(config, mechanism=settled)
    ranks = PlannedRanks(
        config=config,
        architecture=architecture,
        head=head,
        batch_size=config.train.batch_size(plan.size.num_examples),
        device=device,
    ).costs()
    length = None
    if plan.size.source == COUNTED and is_shown:
        length = length_of_sample(config, data().examples, architecture, head)
    length = taken_length(config.task, length)
    measured = estimated = None
    if config.plan.measure:
        measured = measure(config, plan, architecture, head, typical_length=length)
    else:
        memory: RankMemory = ranks["memory_per_rank_bytes"]
        peak = memory.total
        estimated = estimated_cost(
            config, plan, architecture, head, peak_memory_bytes=peak, typical_length=length
        )
    model, new = planned_model(config, architecture, head)
    costs = joined(
        RunCosts,
        parameters_of(count_parameters(model, new)),
        **ranks,
        num_examples_source=plan.size.source,
        micro_batch_size=config.train.most_rows,
        measured=measured,
        estimated=estimated,
        lora=planned_lora(config.method, model) if isinstance(config.method, Lora) else None,
    )
    accounting = account_for_plan(config, plan)
    record = describe(config, plan, accounting, costs, tokens_per_example=length)
    return PlannedRun(plan=plan, accounting=accounting, record=record)


def planned_lora(method: Lora, model: PreTrainedModel) -> PlannedLora:
    """Return which layers of a prepared model LoRA changes, and how."""
    layers = changed_layers(model)
    return PlannedLora(
        rank=method.rank,
        scale=next(iter(layers.values())).scaling["default"],
        layers=len(layers),
        targets=tuple(sorted({name.rpartition(".")[2] for name in layers})),
    )


def account_for_plan(config: PlanConfig, plan: RunPlan) -> AccountingReport | None:
    """Returns what the planned steps cost; None for a non-private run."""
    guarantee = config.privacy.guarantee
    if plan.privacy is None or guarantee is None:
        return None
    return account(plan.privacy.event(), accountant=guarantee.accountant)


def describe(
    config: PlanConfig,
    plan: RunPlan,
    accounting: AccountingReport | None,
    costs: RunCosts,
    *,
    tokens_per_example: int,
) -> PrivatePlan | OpenPlan:
    """Returns what a plan promises and costs, and warns of a promise that says little."""
    if plan.privacy is None or accounting is None:
        nothing = no_promise(
            num_examples=plan.size.num_examples,
            expected_batch_size=config.train.batch_size(plan.size.num_examples),
            steps=plan.steps,
            clipping=plan.unnoised,
        )
        return joined(OpenPlan, nothing, costs)
    trained = costs.trainable_parameters
    warn_of_delta(plan.privacy)
    warn_of_noise(plan.privacy, trained)
    promise = promise_of(plan.privacy, accounting, trainable_parameters=trained)
    share = signal_share(
        plan.privacy.as_independent(),
        expected_batch_size=plan.privacy.expected_batch_size,
        trainable_parameters=trained,
    )
    together = planned_with_tokenizer(config, plan.privacy, promise)
    beside = noise_beside_independent(config, plan)
    return joined(
        PrivatePlan,
        promise,
        together,
        costs,
        private=True,
        signal_to_noise=share,
        noise_in_last_weights=beside,
    )


def length_of_sample(
    config: PlanConfig, records: Sequence[Record], architecture: Architecture, head: Head
) -> int | None:
    """Returns the mean length of some records in tokens, private; None without a tokenizer."""
    task = config.task
    try:
        processor = modality_of(task).processor(
            task, architecture, head, tokens=task.special_tokens
        )
        encoding = encoding_of(task, architecture, head, processor)
    except InputError:  # the model is still to be fetched, as a plan does not
        return None
    sample = [records[at] for at in range(0, len(records), max(1, len(records) // SAMPLE))]
    return own_length(encoding.rows_together(sample))


def measure(
    config: PlanConfig,
    plan: RunPlan,
    architecture: Architecture,
    head: Head,
    *,
    typical_length: int,
) -> MeasuredTime:
    """Times a micro-batch of a model with random weights, so that none are fetched."""
    device = config.train.prepare()
    fresh = dataclasses.replace(architecture.model, init="random")
    untrained = dataclasses.replace(architecture, model=fresh)
    model, _ = prepare_model(config, untrained, head, planned=True)
    model.to(device)  # type: ignore[arg-type]
    clips = config.privacy.clips
    return measure_step(
        model,
        max_length=config.task.longest,
        typical_length=typical_length,
        micro_batch_size=config.train.most_rows,
        expected_batch_size=config.train.batch_size(plan.size.num_examples),
        steps=plan.steps,
        options=clips.clipping_options(config.train.backward_scale) if clips else None,
        layout=layout_of(config.task, architecture, head),
        precision=config.train.precision,
    )
