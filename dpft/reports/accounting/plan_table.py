"""The table that ``dpft plan`` prints."""

from collections.abc import Mapping
from typing import Any

from dpft.privacy.accounting.summary import AccountingReport
from dpft.privacy.plan import PrivacyPlan
from dpft.reports.accounting.epsilon import accounting_table


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
        lines = ["NOT PRIVATE: privacy=none trains without differential privacy.", "", *lines]
        lines.append(f"{'steps':<20}{record['steps']}")
    else:
        table = accounting_table(
            accounting,
            num_examples=plan.num_examples,
            expected_batch_size=plan.expected_batch_size,
            unit=plan.unit,
            calibration=plan.calibration,
        )
        lines += ["", table, *_phase_lines(plan)]
    return "\n".join([*lines, *_measured_lines(record.get("measured"))])


def _parameter_lines(record: Mapping[str, Any]) -> list[str]:
    names = ("trainable", "new", "total")
    return [f"{f'{name} parameters':<22}{record[f'{name}_parameters']:,}" for name in names]


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


def _measured_lines(measured: Mapping[str, Any] | None) -> list[str]:
    if measured is None:
        return []
    hours, seconds = divmod(measured["seconds_total"], 3600)
    return [
        "",
        "measured on one synthetic micro-batch of longest records:",
        f"{'seconds per step':<22}{measured['seconds_per_step']:.2f}",
        f"{'training time':<22}{hours:.0f} h {seconds / 60:.0f} min",
        f"{'peak memory':<22}{measured['peak_memory_bytes'] / 2**30:.2f} GiB",
    ]
