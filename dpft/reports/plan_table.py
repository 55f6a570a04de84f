"""Tables of ``dpft plan``: privacy, cost, and memory of each process."""

import textwrap
from typing import Literal

from dpft.estimates.rank_memory import RankMemory
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.interpretation import signal_notes
from dpft.privacy.accounting.summary import AccountingReport, round_up
from dpft.privacy.plan import SAMPLER, ClippingPlan, PrivacyPlan
from dpft.reports.epsilon import accounting_table, warning_lines
from dpft.reports.privacy_json import NoPromise, PlanPromise
from dpft.strict_model import AtLeastOne, Count, Positive, StrictModel, Versioned
from dpft.training.step_time import MeasuredTime


class PlannedProcesses(StrictModel):
    """The processes of the planned run."""

    strategy: Literal["none", "ddp", "fsdp"]
    """Value of parallel."""
    world_size: AtLeastOne
    """Number of processes."""
    shard_size: AtLeastOne
    """Number of shards of the model."""
    accumulate: Literal["whole", "sharded"]
    """Whether each process keeps the whole sum of gradients or a shard of the sum."""
    engine: str | None = None
    """The clipping engine; null without privacy."""


class PlannedLora(StrictModel):
    """The layers that LoRA changes."""

    rank: AtLeastOne
    """Rank of each change."""
    scale: Positive
    """Factor of each change."""
    layers: AtLeastOne
    """Number of changed layers."""
    targets: tuple[str, ...]
    """Last parts of the names of the changed layers."""


class RunCosts(StrictModel):
    """Memory and time of a run on this machine."""

    parameters: ParameterCounts
    """Numbers of all and of trainable parameters of the model."""
    num_examples_source: str
    """Source of the number of examples."""
    micro_batch_size: AtLeastOne
    """Largest number of records in memory at once."""
    processes: PlannedProcesses
    """The processes of the planned run."""
    memory_per_rank_bytes: RankMemory
    """Peak memory of a process during a step, in bytes."""
    device_memory_bytes: Count | None = None
    """Memory that each process can use, in bytes; null if unknown."""
    largest_micro_batch: Count | None = None
    """Number of records of the largest micro-batch that fits; null if unknown."""
    measured: MeasuredTime | None = None
    """Time of the steps; absent with plan.measure=false or if it cannot be measured here."""
    lora: PlannedLora | None = None
    """Layers that LoRA changes; absent for other methods."""


class PrivatePlan(PlanPromise, RunCosts, Versioned):
    """The plan of a private run."""

    signal_to_noise: Positive
    """Largest possible ratio of the norm of the sum of clipped gradients to the norm of the
    noise."""
    noise_in_last_weights: Positive | None = None
    """Noise in the last weights: correlated noise divided by independent noise at the same epsilon,
    for the run's schedule and momentum, by RDP. Absent without a target epsilon."""


class OpenPlan(NoPromise, RunCosts, Versioned):
    """The plan of a run without privacy."""


GIGABYTE = 10**9
PARTS = ("weights", "gradients", "optimizer", "activations", "other")
"""Parts of a process's memory, in the order of the table."""


def process_lines(costs: RunCosts) -> list[str]:
    """Return the processes, their memory by part, and the largest micro-batch that fits."""
    parts = costs.memory_per_rank_bytes
    sizes = [(name, getattr(parts, name)) for name in PARTS]
    largest, room = costs.largest_micro_batch, costs.device_memory_bytes
    fits = []
    if largest is not None and room is not None:
        fits.append(_line("largest micro-batch", f"{largest} records in {room / GIGABYTE:.1f} GB"))
    heading = ["peak memory, estimated from shapes:"]
    if costs.processes.world_size > 1:
        heading = [
            _spread(costs.processes),
            "memory of each process at its peak, estimated from shapes:",
        ]
    return [
        "",
        *heading,
        *(_line(name, f"{size / GIGABYTE:.2f} GB") for name, size in sizes if size),
        _line("peak memory", f"{parts.total / GIGABYTE:.2f} GB"),
        *fits,
    ]


def _spread(processes: PlannedProcesses) -> str:
    """Return a line that describes how a run is distributed over processes."""
    strategy, count = processes.strategy, processes.world_size
    if strategy != "fsdp":
        return f"{count} processes, {strategy}: {count} replicas of the whole model"
    shards = processes.shard_size
    replicas = count // shards
    layout = f"{replicas} replicas in {shards} shards each" if replicas > 1 else f"{shards} shards"
    return f"{count} processes, {strategy}: {layout}, accumulate={processes.accumulate}"


def _line(name: str, value: str) -> str:
    return f"{name:<22}{value}"


def plan_table(
    record: PrivatePlan | OpenPlan, plan: PrivacyPlan | None, accounting: AccountingReport | None
) -> str:
    """Return the plan as lines of text, 80 columns wide, a summary first."""
    parameters = record.parameters
    lines = [
        f"{'trainable parameters':<22}{parameters.trainable:,}",
        f"{'new parameters':<22}{parameters.new:,}",
        f"{'total parameters':<22}{parameters.total:,}",
        *_lora_lines(record),
    ]
    if isinstance(record, OpenPlan) or plan is None or accounting is None:
        assert isinstance(record, OpenPlan)
        alarm = ["NOT PRIVATE: privacy=none trains without differential privacy."]
        if isinstance(record.plan, ClippingPlan):
            alarm.append("Each example's gradient is clipped, and no noise is added.")
        lines = [*alarm, summary_line(record), "", *lines]
        lines.append(f"{'steps':<22}{record.plan.steps}")
        lines += [f"{name:<22}{value}" for name, value in _clipped_rows(record)]
    else:
        table = accounting_table(
            accounting,
            num_examples=plan.num_examples,
            expected_batch_size=plan.expected_batch_size,
            unit=plan.unit,
            calibration=plan.calibration,
            delta_source=plan.delta_source,
            steps=plan.mechanism.in_words(plan.steps) if plan.mechanism.has_streams else None,
            sampler=plan.sampler,
        )
        lines = [summary_line(record), "", *lines, "", table]
        lines += [*_phase_lines(plan), *_signal_lines(record)]
    lines += [*_time_lines(record), *process_lines(record)]
    return "\n".join(lines)


def _lora_lines(costs: RunCosts) -> list[str]:
    """Return lines on the layers that LoRA changes; no lines for other methods."""
    lora = costs.lora
    if lora is None:
        return []
    names = ", ".join(lora.targets)
    settings = f"({lora.layers} layers, rank {lora.rank}, scale {lora.scale:g})"
    text = _line("LoRA targets", f"{names} {settings}")
    return textwrap.wrap(text, width=80, subsequent_indent=" " * 22)


def summary_line(record: PrivatePlan | OpenPlan) -> str:
    """Return the cost and the ε of a run in one line.

    An example is "about 3 minutes, 1.07 GB, ε 7.998 for the training only, ε 8.500 with its
    tokenizer".
    """
    figures = [f"{record.memory_per_rank_bytes.total / GIGABYTE:.2f} GB"]
    if record.measured is not None:
        figures.insert(0, f"about {in_words(record.measured.seconds_total)}")
    if isinstance(record, OpenPlan):
        return ", ".join([*figures, "no ε"])
    spent = f"ε {round_up(record.epsilon, 3):.3f}"
    if record.with_tokenizer is not None:
        both = round_up(record.with_tokenizer.epsilon, 3)
        spent += f" for the training only, ε {both:.3f} with its tokenizer"
    return ", ".join([*figures, spent])


def _clipped_rows(record: OpenPlan) -> list[tuple[str, str]]:
    """Return the sampling and clipping of a run without noise; no rows for ordinary training."""
    plan = record.plan
    if not isinstance(plan, ClippingPlan):
        return []
    return [
        ("sampler", SAMPLER),
        ("sample rate", f"{plan.sample_rate:.6g}"),
        ("clipping", plan.clipping),
        ("max_grad_norm", ", ".join(f"{phase.max_grad_norm:g}" for phase in plan.phases)),
    ]


def in_words(seconds: float) -> str:
    """Return a duration in words.

    >>> in_words(0.2), in_words(80), in_words(200), in_words(9000), in_words(400_000)
    ('1 second', '80 seconds', '3 minutes', '2.5 hours', '4.6 days')
    """
    for size, unit, digits in ((86400, "day", 1), (3600, "hour", 1), (60, "minute", 0)):
        if seconds >= 2 * size:
            return f"{round(seconds / size, digits or None):g} {unit}s"
    whole = max(1, round(seconds))
    return f"{whole} second{'s' if whole > 1 else ''}"


def _signal_lines(record: PrivatePlan) -> list[str]:
    """Return the largest possible ratio of a run's gradients to its noise, and its meaning."""
    share, beside = record.signal_to_noise, record.noise_in_last_weights
    last = (
        []
        if beside is None
        else [f"{'noise':<20}in the last weights: {beside:.2f}× that of independent steps, by RDP"]
    )
    return [
        "",
        *last,
        f"{'signal to noise':<20}{share:.2g} at best, if all gradients of all steps point one way",
        *warning_lines(signal_notes(share), label="note"),
    ]


def _phase_lines(plan: PrivacyPlan) -> list[str]:
    """Return a line for each phase of a plan; no lines for a single phase."""
    if len(plan.phases) == 1:
        return []
    phases = enumerate(plan.phases, start=1)
    return [
        "",
        *(
            f"{f'phase {number}':<20}{phase.method}, {phase.steps} steps,"
            f" max_grad_norm {phase.max_grad_norm:g}, sensitivity {phase.sensitivity:g}"
            for number, phase in phases
        ),
    ]


def _time_lines(costs: RunCosts) -> list[str]:
    """Return the measured time and how it was measured; no lines without a measurement."""
    time = costs.measured
    if time is None:
        return []
    hours, seconds = divmod(time.seconds_total, 3600)
    tokens = time.tokens_per_example
    examples = f"{time.timed_micro_batch} synthetic examples"
    if tokens > 1:
        examples += f" of {tokens} tokens"
    about = (
        f"time on this machine, measured on micro-batches of {examples}, without loading,"
        " evaluation, and exchange between processes:"
    )
    return [
        "",
        *textwrap.wrap(about, width=80),
        _line("seconds per step", f"{time.seconds_per_step:.2f}"),
        _line("training time", f"{hours:.0f} h {seconds / 60:.0f} min"),
    ]
