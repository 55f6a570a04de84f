"""The tables that ``dpft plan`` prints: a run's cost, and what each process holds and sends."""

from collections.abc import Mapping
from typing import Any

from dpft.privacy.accounting.rounding import round_up
from dpft.privacy.accounting.signal import signal_notes
from dpft.privacy.accounting.summary import AccountingReport
from dpft.privacy.plan import PrivacyPlan
from dpft.reports.accounting.epsilon import accounting_table, warning_lines

GIGABYTE = 10**9
PHASES = {
    "proof": "the proof of the first micro-batch",
    "accumulate": "a micro-batch",
    "finish": "the sum of a step",
    "optimizer": "the optimizer's step",
}


def process_lines(record: Mapping[str, Any]) -> list[str]:
    r"""Returns memory by part and bytes sent; nothing where a record has none.

    >>> record = {
    ...     "processes": {"strategy": "fsdp", "world_size": 8, "shard_size": 4,
    ...                   "accumulate": "whole", "engine": "two_pass"},
    ...     "memory_per_rank_bytes": {"weights": 2 * 10**9, "proof": 0, "total": 2 * 10**9},
    ...     "memory_peak_phase": "finish", "bytes_sent_per_step": 10**9,
    ...     "device_memory_bytes": 80 * 10**9, "largest_micro_batch": 32,
    ... }  # fmt: skip
    >>> print("\n".join(process_lines(record)[1:]))
    8 processes, fsdp: 2 replicas in 4 shards each, accumulate=whole
    each at most, by its shapes, in the sum of a step:
    weights               2.00 GB
    total                 2.00 GB
    sent in a step        1.00 GB by each
    largest micro-batch   32 records in 80.0 GB

    Args:
        record: What ``dpft plan output=json`` prints.
    """
    if "processes" not in record:
        return []
    parts = record["memory_per_rank_bytes"]
    return [
        "",
        _spread(record["processes"]),
        f"each at most, by its shapes, in {PHASES[record['memory_peak_phase']]}:",
        *(_line(name, f"{size / GIGABYTE:.2f} GB") for name, size in parts.items() if size),
        _line("sent in a step", f"{record['bytes_sent_per_step'] / GIGABYTE:.2f} GB by each"),
        *_largest(record),
    ]


def _spread(processes: Mapping[str, Any]) -> str:
    """Returns how a run is spread over processes."""
    strategy, count = processes["strategy"], processes["world_size"]
    if count == 1:
        return "1 process"
    if strategy != "fsdp":
        return f"{count} processes, {strategy}: {count} replicas of the whole model"
    shards = processes["shard_size"]
    replicas = count // shards
    there = f"{replicas} replicas in {shards} shards each" if replicas > 1 else f"{shards} shards"
    return f"{count} processes, {strategy}: {there}, accumulate={processes['accumulate']}"


def _largest(record: Mapping[str, Any]) -> list[str]:
    largest, room = record["largest_micro_batch"], record["device_memory_bytes"]
    if largest is None:
        return []
    return [_line("largest micro-batch", f"{largest} records in {room / GIGABYTE:.1f} GB")]


def _line(name: str, value: str) -> str:
    return f"{name:<22}{value}"


def plan_table(
    record: Mapping[str, Any],
    plan: PrivacyPlan | None,
    accounting: AccountingReport | None,
) -> str:
    """Returns the plan as lines of text, 80 columns wide.

    Args:
        record: What ``dpft plan output=json`` prints.
        plan: The mechanism, or None for a non-private run.
        accounting: Its accounting.
    """
    lines = _parameter_lines(record)
    if plan is None or accounting is None:
        lines = [*_not_private_lines(record), "", *lines]
        lines.append(f"{'steps':<22}{record['steps']}")
        lines += [f"{name:<22}{value}" for name, value in _clipped_rows(record)]
    else:
        table = accounting_table(
            accounting,
            num_examples=plan.num_examples,
            expected_batch_size=plan.expected_batch_size,
            unit=plan.unit,
            calibration=plan.calibration,
            delta_source=plan.delta_source,
        )
        lines += ["", table, *_phase_lines(plan), *_signal_lines(record)]
    lines += [*_cost_lines(record), *process_lines(record), *_compute_lines(record)]
    lines += ["", summary_line(record)]
    return "\n".join(lines)


NOT_FITTED = (
    "advised is the division of most steps that keeps 0.9 of the best signal, a rule of dpft's;"
    " the losses that McKenna et al. 2025 (arXiv 2501.18914) interpolate from pre-training are not"
    " in dpft"
)
SMALLER = (
    "of that compute, pre-training without privacy is best spent on a model of {size}"
    " parameters (Hoffmann et al. 2022), and with privacy on a smaller one (McKenna et al. 2025);"
    " neither speaks of fine-tuning"
)


def _compute_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns how a budget of tokens is divided; nothing where none was given."""
    compute = record.get("compute")
    if compute is None:
        return []
    per_example, best = compute["tokens_per_example"], compute["advised"]
    lines = [
        "",
        f"{compute['tokens']:g} tokens, {per_example} an example, {compute['flops']:.2g} FLOPs:",
        f"{'steps':>10}{'batch size':>12}{'noise':>10}{'noise/batch':>13}{'signal':>10}",
    ]
    for row in compute["divisions"]:
        mark = "  advised" if row == best else ""
        lines.append(
            f"{row['steps']:>10}{row['expected_batch_size']:>12}{row['noise_multiplier']:>10.4g}"
            f"{row['noise_batch_ratio']:>13.3g}{row['strength']:>10.3g}{mark}"
        )
    size = float(f"{compute['parameters_without_privacy']:.2g}")
    notes = [NOT_FITTED, SMALLER.format(size=f"{size:,.0f}")]
    if not best["is_measured"]:
        notes.append("the advised steps and ratio are outside of what they measured")
    return [*lines, *warning_lines(notes, label="note")]


def summary_line(record: Mapping[str, Any]) -> str:
    """Returns what a run would take and promise, in a line for people.

    >>> cost = {"seconds_total": 200.0, "peak_memory_bytes": 8 * 2**27}
    >>> summary_line({"estimated": cost, "epsilon": 7.998})
    'about 3 minutes, 1.0 GiB, ε 7.998'
    >>> summary_line({"epsilon": 7.998, "epsilon_with_tokenizer": 8.5})
    'ε 7.998 of the training alone, ε 8.500 with its tokenizer'

    Args:
        record: What ``dpft plan output=json`` prints.
    """
    cost = record.get("measured") or record.get("estimated")
    taken = []
    if cost is not None:
        memory = cost["peak_memory_bytes"] / 2**30
        taken = [f"about {in_words(cost['seconds_total'])}", f"{memory:.1f} GiB"]
    spent = f"ε {round_up(record['epsilon'], 3):.3f}" if "epsilon" in record else "no ε"
    if "epsilon_with_tokenizer" in record:
        both = round_up(record["epsilon_with_tokenizer"], 3)
        spent += f" of the training alone, ε {both:.3f} with its tokenizer"
    return ", ".join([*taken, spent])


def _not_private_lines(record: Mapping[str, Any]) -> list[str]:
    lines = ["NOT PRIVATE: privacy=none trains without differential privacy."]
    if "max_grad_norm" in record:
        lines.append("Each example's gradient is clipped, and no noise is added.")
    return lines


def _clipped_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns how a run without noise draws and clips; nothing of ordinary training."""
    if "max_grad_norm" not in record:
        return []
    norms = ", ".join(f"{phase['max_grad_norm']:g}" for phase in record["phases"])
    return [
        ("sampler", record["sampler"]),
        ("sample rate", f"{record['sample_rate']:.6g}"),
        ("clipping", record["clipping"]),
        ("max_grad_norm", norms),
    ]


def _of_length(tokens: int) -> str:
    """Returns how long a record is taken to be; one that has no length is 1."""
    return "one size" if tokens == 1 else f"{tokens} tokens"


def in_words(seconds: float) -> str:
    """Returns a time as somebody would say it.

    >>> in_words(0.2), in_words(80), in_words(200), in_words(9000), in_words(400_000)
    ('1 second', '80 seconds', '3 minutes', '2.5 hours', '4.6 days')
    """
    for size, unit, digits in ((86400, "day", 1), (3600, "hour", 1), (60, "minute", 0)):
        if seconds >= 2 * size:
            return f"{round(seconds / size, digits or None):g} {unit}s"
    whole = max(1, round(seconds))
    return f"{whole} second{'s' if whole > 1 else ''}"


def _parameter_lines(record: Mapping[str, Any]) -> list[str]:
    names = ("trainable", "new", "total")
    return [f"{f'{name} parameters':<22}{record[f'{name}_parameters']:,}" for name in names]


def _signal_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns how long a run's gradients are at best beside its noise, and what that means."""
    if "signal_to_noise" not in record:
        return []
    share = record["signal_to_noise"]
    return [
        "",
        f"{'signal to noise':<20}{share:.2g} at best, if all gradients of all steps point one way",
        *warning_lines(signal_notes(share), label="note"),
    ]


def _phase_lines(plan: PrivacyPlan) -> list[str]:
    """Returns a line for each phase of a plan; none where it has one alone."""
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


def _cost_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns time and memory, measured or else estimated, and how that was done."""
    if "measured" in record:
        cost = record["measured"]
        how = [
            f"measured on synthetic micro-batches: time for records of"
            f" {_of_length(cost['typical_length'])},",
            "memory for the longest ones; loading and evaluation left out:",
        ]
    elif "estimated" in record:
        cost = record["estimated"]
        how = [
            "estimated by a probe of this machine as it is now, for records of"
            f" {_of_length(cost['typical_length'])};",
            "loading and evaluation left out; plan.measure=true times the model instead:",
        ]
    else:
        return []
    hours, seconds = divmod(cost["seconds_total"], 3600)
    return [
        "",
        *how,
        f"{'seconds per step':<22}{cost['seconds_per_step']:.2f}",
        f"{'training time':<22}{hours:.0f} h {seconds / 60:.0f} min",
        f"{'peak memory':<22}{cost['peak_memory_bytes'] / 2**30:.2f} GiB",
        f"{'micro-batch':<22}{record['micro_batch_size']} records",
    ]
