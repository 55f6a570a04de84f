"""Sentences, tables and plots of epsilon, as ``dpft account`` prints them.

Tables are plain text of at most 80 columns without color or box characters, so that a pipe, a log
and a terminal show the same. matplotlib is imported when a plot is drawn, without pyplot,
so there is no window and no global state.
"""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dpft.constants import OWN_DATA, PUBLISHED
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.curve import failures
from dpft.privacy.accounting.summary import (
    DECIMALS,
    LARGEST_WRITTEN_OUT,
    AccountingReport,
    Answer,
    Interval,
    NoAnswer,
    delta_text,
    eps_text,
    round_up,
)
from dpft.privacy.plan import GIVEN, NEIGHBORING_RELATION, SAMPLER, default_delta
from dpft.run_folder import write_bytes

WIDTH = 80
SMALL_SHARE, LARGE_DELTA = 0.1, 1e-3
"""Limits for warnings: the probability of releasing a whole record, and delta itself."""
NOT_PRIVATE_SEED = "reproducible: not private (privacy.noise_seed was given)"


def accounting_table(
    report: AccountingReport,
    *,
    num_examples: int | None = None,
    expected_batch_size: float | None = None,
    unit: str = "example",
    calibration: Calibration | None = None,
    delta_source: str = GIVEN,
    steps: str | None = None,
    sampler: str = SAMPLER,
) -> str:
    """Return the mechanism, the bounds of every accountant and the headline, as lines of text.

    Args:
        report: Return value of ``account``.
        num_examples: Public number of units, if known.
        expected_batch_size: Mean size of a draw, if known.
        unit: Privacy unit.
        calibration: Calibration that chose the noise multiplier, if any.
        delta_source: ``GIVEN``, or the rule that derived delta from the number of units.
        steps: Number of steps as text, if a unit takes part in only some steps.
        sampler: How units are drawn.

    Guarantees:
        Upper bounds are rounded up and lower bounds down, to ``DECIMALS`` decimals.
    """
    mechanism = report.mechanism
    rows = [("noise multiplier", f"{mechanism.noise_multiplier:.6g}")]
    if calibration is not None:
        rows.append(("chosen by", f"{calibration.accountant} ({calibration.grid})"))
    rows.append(("sample rate", f"{mechanism.sample_rate:.6g}"))
    if expected_batch_size is not None:
        rows.append(("expected batch size", f"{expected_batch_size:g}"))
    if num_examples is not None:
        rows.append(("examples", f"{num_examples} (taken as public)"))
    rows += [("steps", steps or f"{mechanism.steps}"), ("delta", delta_text(mechanism.delta))]
    lines = [f"{label:<20}{value}" for label, value in rows]
    lines += ["", *accountant_lines(report.epsilons)]
    lines += [
        "",
        headline_of(
            report.epsilon,
            delta=mechanism.delta,
            accountant=report.accountant,
            steps=steps or f"{mechanism.steps} steps",
            unit=unit,
            sampler=sampler,
        ),
        *warning_lines(report.warnings),
    ]
    if num_examples is not None:
        lines += warning_lines(delta_notes(num_examples, source=delta_source), label="note")
    return "\n".join(lines)


def accountant_lines(epsilons: Mapping[str, Answer]) -> list[str]:
    """Return one line with the bounds of each accountant, after a line of headings."""
    heading = f"{'accountant':<12}{'lower':>14}{'estimate':>14}{'upper':>14}"
    return [heading, *(_accountant_line(name, answer) for name, answer in epsilons.items())]


def warning_lines(warnings: Iterable[str], *, label: str = "warning") -> list[str]:
    """Return each warning, wrapped to ``WIDTH`` columns."""
    return [_wrapped(f"{label}: {warning}", indent=len(label) + 2) for warning in warnings]


def headline_of(
    epsilon: float, *, delta: float, accountant: str, steps: str, unit: str, sampler: str = SAMPLER
) -> str:
    """Return epsilon with everything that it depends on, wrapped to ``WIDTH`` columns.

    Args:
        epsilon: An upper bound; it is rounded up.
        delta: Delta of the guarantee, in (0, 1); it is rounded up.
        accountant: Accountant of the bound.
        steps: Composed steps, in words: "100 steps".
        unit: Name of one privacy unit.
        sampler: How units were drawn.
    """
    return _wrapped(
        f"epsilon = {eps_text(epsilon)} (upper bound by {accountant}) at "
        f"delta = {delta_text(delta)}, neighboring relation {NEIGHBORING_RELATION} of one "
        f"{unit}, sampler {sampler}, {steps}",
        indent=0,
    )


def delta_warnings(delta: float, num_examples: int, *, source: str) -> list[str]:
    """Return a warning if delta is so large that the guarantee is weak.

    A mechanism that releases one of ``num_examples`` records at random, with probability ``delta *
    num_examples``, satisfies (0, delta)-differential privacy. There is no warning for the papers'
    1/(2 * num_examples), because the user did not choose it: see ``delta_notes``.

    Args:
        delta: Delta of the guarantee.
        num_examples: Public number of units.
        source: ``GIVEN``, or the rule that derived delta from the number of units.
    """
    if delta >= 1 / num_examples:
        relation = "equal to" if delta == 1 / num_examples else "above"
        return [
            f"delta = {delta_text(delta)} is {relation} 1/num_examples = {1 / num_examples:.3g}:"
            " releasing one whole record at random would satisfy it. Choose a smaller delta."
        ]
    if source == GIVEN and delta > SMALL_SHARE / num_examples:
        return [
            f"delta = {delta_text(delta)} is above 1/(10*num_examples) ="
            f" {SMALL_SHARE / num_examples:.3g}: releasing one whole record at random with"
            f" probability {delta * num_examples:.2g} would satisfy it. Choose a smaller delta."
        ]
    if delta > LARGE_DELTA:
        return [
            f"delta = {delta_text(delta)} is above {LARGE_DELTA:g}: the guarantee may fail outright"
            " with this probability, however few records there are. Choose a smaller delta."
        ]
    return []


def delta_notes(num_examples: int, *, source: str | None) -> list[str]:
    """Return a note if delta is 1/(2n), the rule of the papers; no note otherwise.

    Args:
        num_examples: Public number of units.
        source: ``GIVEN``, or the rule that derived delta from the number of units; None if unknown.
    """
    if source != PUBLISHED:
        return []
    default = default_delta(num_examples, OWN_DATA)
    return [
        f"delta is 1/(2n) for n = {num_examples}, as in the papers: releasing one whole record at"
        " random with probability 0.5 would satisfy it. For your data, the default is 1/(10n),"
        f" rounded down to one digit: {default:g}."
    ]


def _accountant_line(name: str, answer: Answer) -> str:
    """Return a line of the table, with the reason if the accountant failed."""
    if isinstance(answer, NoAnswer):
        return textwrap.fill(
            answer.error, WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12
        )
    lower, estimate, upper = _cells(name, answer)
    note = "  (not a bound)" if name == "gdp" else ""
    return f"{name:<12}{lower:>14}{estimate:>14}{upper:>14}{note}".rstrip()


def _cells(name: str, answer: float | Interval) -> tuple[str, str, str]:
    if isinstance(answer, Interval):
        lower = abs(round_up(-answer.lower, DECIMALS))
        return f"{lower:.{DECIMALS}f}", f"{answer.estimate:.{DECIMALS}f}", eps_text(answer.upper)
    if name == "gdp":
        is_written_out = answer < LARGEST_WRITTEN_OUT
        return "", f"{answer:.{DECIMALS}f}" if is_written_out else f"{answer:.{DECIMALS}g}", ""
    return "", "", eps_text(answer)


def _wrapped(text: str, *, indent: int) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def curve_table(reports: Sequence[AccountingReport]) -> str:
    """Return the bound of every accountant after each number of steps; gdp is an estimate."""
    names = list(reports[0].epsilons)
    heading = "".join(f"{name + ('*' if name == 'gdp' else ''):>12}" for name in names)
    lines = [f"{'steps':>10}{heading}{'headline':>12}  by"]
    for report in reports:
        cells = "".join(f"{_cell(report.epsilons[name]):>12}" for name in names)
        headline = f"{eps_text(report.epsilon):>12}  {report.accountant}"
        lines.append(f"{report.mechanism.steps:>10}{cells}{headline}")
    lines += ["", "* an estimate, not a bound; - no bound"]
    return "\n".join([*lines, *warning_lines(failure_notes(reports))])


def failure_notes(reports: Sequence[AccountingReport]) -> list[str]:
    """Return a sentence for each accountant that failed, with the steps without a bound."""
    return [
        f"{failure.accountant} gave no bound at {len(failure.steps)} of {len(reports)} points,"
        f" steps {', '.join(map(str, failure.steps))}: {failure.reason}"
        for failure in failures(reports)
    ]


def _cell(answer: Answer) -> str:
    value = _value(answer)
    return "-" if value is None else eps_text(value)


def _value(answer: Answer) -> float | None:
    """Return the upper bound or the estimate of an accountant; None without an answer."""
    if isinstance(answer, Interval):
        return answer.upper
    return None if isinstance(answer, NoAnswer) else answer


STYLES = {"rdp": "--", "pld": "-.", "prv": "-", "gdp": ":"}


def plot_epsilon_over_steps(reports: Sequence[AccountingReport], path: Path) -> None:
    """Draw the epsilon of each accountant over steps; gdp is dotted, because it is not a bound.

    Equal numbers give files with equal bytes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, style in STYLES.items():
        points = [(report.mechanism.steps, _value(report.epsilons[name])) for report in reports]
        computed = [(steps, value) for steps, value in points if value is not None]
        if computed:
            label = f"{name} (estimate, no bound)" if name == "gdp" else f"{name} (upper bound)"
            axes.plot(*zip(*computed, strict=True), style, marker=".", label=label)
    axes.set(
        xlabel="steps",
        ylabel="epsilon",
        title=f"epsilon at delta = {reports[0].mechanism.delta:.3g}",
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    content = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "dpft", "svg.fonttype": "none"}):
        figure.savefig(content, format=kind, metadata=metadata, dpi=150)
    write_bytes(path, content.getvalue())
