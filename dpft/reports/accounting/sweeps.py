"""Tables and records of accounting over steps and over batch sizes.

What ``dpft account curve=true`` and ``dpft account batch_sizes=[...]`` print.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from dpft.privacy.accounting.batch_sizes import BatchSizeNoise, square_root_rule
from dpft.privacy.accounting.curve import failures
from dpft.privacy.accounting.summary import AccountingReport, eps_text
from dpft.privacy.plan import NEIGHBORING_RELATION, SAMPLER
from dpft.records.bounds import Answer, Interval
from dpft.records.costs import (
    BatchSizePoint,
    CostAtSteps,
    CostOfBatchSizes,
    FixedEpochs,
    FixedSteps,
)
from dpft.reports.accounting.epsilon import warning_lines

RULE_HOLDS = (
    "the square-root rule, noise = c * sqrt(sample rate) with c fitted at the largest batch size,"
    " is stated for fixed epochs and large sample rates (Li et al. 2022, appendix D, Figure 6)"
)


def curve_table(reports: Sequence[AccountingReport]) -> str:
    """Returns every accountant's bound after each number of steps; gdp's is an estimate."""
    names = list(reports[0].epsilons)
    heading = "".join(f"{name + ('*' if name == 'gdp' else ''):>12}" for name in names)
    lines = [f"{'steps':>10}{heading}{'headline':>12}  by"]
    for report in reports:
        cells = "".join(f"{_cell(report.epsilons[name]):>12}" for name in names)
        headline = f"{eps_text(report.epsilon):>12}  {report.accountant}"
        lines.append(f"{report.mechanism.steps:>10}{cells}{headline}")
    lines += ["", "* an estimate, not a bound; - no bound"]
    return "\n".join([*lines, *warning_lines(failure_notes(reports))])


def curve_record(reports: Sequence[AccountingReport]) -> tuple[CostAtSteps, ...]:
    """Returns the points as they are printed."""
    return tuple(
        CostAtSteps(
            steps=report.mechanism.steps,
            epsilon=report.epsilon,
            accountant=report.accountant,
            epsilons=report.epsilons,
        )
        for report in reports
    )


def failure_notes(reports: Sequence[AccountingReport]) -> list[str]:
    """Returns, in a sentence for each accountant, on which steps it gave no bound."""
    return [
        f"{failure.accountant} gave no bound at {len(failure.steps)} of {len(reports)} points,"
        f" steps {', '.join(map(str, failure.steps))}: {failure.reason}"
        for failure in failures(reports)
    ]


def noise_table(sweeps: Mapping[str, Sequence[BatchSizeNoise]]) -> str:
    """Returns noise and effective noise at each batch size, beside the square-root rule.

    Args:
        sweeps: What was fixed, in words, to the points, ascending.
    """
    lines = []
    for fixed, points in sweeps.items():
        lines += [f"fixed {fixed}", _NOISE_HEADING]
        rows = zip(points, square_root_rule(points), strict=True)
        lines += [_noise_row(point, rule) for point, rule in rows]
        lines.append("")
    return "\n".join([*lines, *warning_lines([RULE_HOLDS], label="note")])


def noise_record(points: Sequence[BatchSizeNoise]) -> tuple[BatchSizePoint, ...]:
    """Returns the points as they are printed."""
    return tuple(
        BatchSizePoint(
            **asdict(point),
            effective_noise_multiplier=point.effective_noise_multiplier,
            square_root_rule=rule,
        )
        for point, rule in zip(points, square_root_rule(points), strict=True)
    )


def batch_sizes_record(
    sweeps: Mapping[str, Sequence[BatchSizeNoise]],
    *,
    fixed: Mapping[str, float | None],
    eps: float,
    delta: float,
    num_examples: int,
    warnings: Sequence[str],
) -> CostOfBatchSizes:
    """Returns noise over batch sizes as it is printed.

    Args:
        sweeps: What was fixed, in words that begin with its name, to the points, ascending.
        fixed: What was fixed, by name: steps, epochs.
        eps: The budget.
        delta: At which it is meant.
        num_examples: The public number.
        warnings: What a reader must know, a sentence each.
    """
    points = {words.partition(" ")[0]: noise_record(found) for words, found in sweeps.items()}
    steps, epochs = fixed["steps"], fixed["epochs"]
    return CostOfBatchSizes(
        eps=eps,
        delta=delta,
        num_examples=num_examples,
        neighboring_relation=NEIGHBORING_RELATION,
        sampler=SAMPLER,
        square_root_rule=RULE_HOLDS,
        warnings=tuple(warnings),
        fixed_steps=None if steps is None else FixedSteps(steps=steps, points=points["steps"]),
        fixed_epochs=None
        if epochs is None
        else FixedEpochs(epochs=epochs, points=points["epochs"]),
    )


_NOISE_HEADING = (
    f"{'batch size':>12}{'rate':>12}{'steps':>10}{'noise':>12}{'noise/rate':>14}{'square root':>14}"
    "  by"
)


def _noise_row(point: BatchSizeNoise, rule: float | None) -> str:
    start = f"{point.expected_batch_size:>12g}{point.sample_rate:>12.6g}{point.steps:>10}"
    if point.noise_multiplier is None:
        return f"{start}  {point.error}"
    assert rule is not None
    effective = f"{point.effective_noise_multiplier:>14.6g}"
    return f"{start}{point.noise_multiplier:>12.6g}{effective}{rule:>14.6g}  {point.accountant}"


def _cell(answer: Answer) -> str:
    if isinstance(answer, float | int):
        return eps_text(answer)
    return eps_text(answer.upper) if isinstance(answer, Interval) else "-"
