"""Tables and records of accounting over steps and over batch sizes.

What ``dpft account curve=true`` and ``dpft account batch_sizes=[...]`` print.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dpft.files import SCHEMA_VERSION
from dpft.privacy.accounting.batch_sizes import BatchSizeNoise, square_root_rule
from dpft.privacy.accounting.over_steps import failures
from dpft.privacy.accounting.rounding import up
from dpft.privacy.accounting.summary import AccountingReport, Answer
from dpft.privacy.plan import NEIGHBORING_RELATION, SAMPLER
from dpft.reports.accounting.epsilon import plain_answers, warning_lines

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
        headline = f"{up(report.epsilon):>12}  {report.accountant}"
        lines.append(f"{report.mechanism.steps:>10}{cells}{headline}")
    lines += ["", "* an estimate, not a bound; - no bound"]
    return "\n".join([*lines, *warning_lines(failure_notes(reports))])


def curve_record(reports: Sequence[AccountingReport]) -> list[dict[str, Any]]:
    """Returns the points ready for JSON."""
    return [
        {
            "steps": report.mechanism.steps,
            "epsilon": report.epsilon,
            "accountant": report.accountant,
            "epsilons": plain_answers(report.epsilons),
        }
        for report in reports
    ]


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


def noise_record(points: Sequence[BatchSizeNoise]) -> list[dict[str, Any]]:
    """Returns the points ready for JSON; keys that do not apply are absent."""
    rows = [
        {
            **asdict(point),
            "effective_noise_multiplier": point.effective_noise_multiplier,
            "square_root_rule": rule,
        }
        for point, rule in zip(points, square_root_rule(points), strict=True)
    ]
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def batch_sizes_record(
    sweeps: Mapping[str, Sequence[BatchSizeNoise]],
    *,
    fixed: Mapping[str, float | None],
    eps: float | None,
    delta: float,
    num_examples: int | None,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Returns noise over batch sizes ready for JSON.

    Args:
        sweeps: What was fixed, in words that begin with its name, to the points, ascending.
        fixed: What was fixed, by name: steps, epochs.
        eps: The budget.
        delta: At which it is meant.
        num_examples: The public number.
        warnings: What a reader must know, a sentence each.
    """
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "eps": eps,
        "delta": delta,
        "num_examples": num_examples,
        "neighboring_relation": NEIGHBORING_RELATION,
        "sampler": SAMPLER,
        "square_root_rule": RULE_HOLDS,
        "warnings": list(warnings),
    }
    for words, points in sweeps.items():
        name = words.partition(" ")[0]
        record[f"fixed_{name}"] = {name: fixed[name], "points": noise_record(points)}
    return record


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
    if isinstance(answer, float):
        return up(answer)
    return up(float(answer["upper"])) if "upper" in answer else "-"
