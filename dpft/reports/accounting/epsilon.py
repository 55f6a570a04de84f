"""Tables of an accounting result: what ``dpft account`` prints.

Plain text of at most 80 columns without color or box characters, so that a pipe, a log and a
terminal show the same.
"""

import textwrap
from collections.abc import Iterable, Mapping

from dpft.kinds import OWN_DATA, PUBLISHED
from dpft.privacy.accounting.summary import (
    DECIMALS,
    AccountingReport,
    delta_text,
    eps_text,
    round_up,
)
from dpft.privacy.plan import GIVEN, NEIGHBORING_RELATION, SAMPLER, default_delta
from dpft.records.bounds import Answer, Interval, NoAnswer
from dpft.records.ledger import Calibration

WIDTH = 80
SMALL_SHARE, LARGE_DELTA = 0.1, 1e-3
"""From which chance of releasing a whole record, and from which delta, there is a warning."""
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
    """Returns the mechanism, every accountant's answer and the headline, as lines of text.

    Args:
        report: What ``account`` returned.
        num_examples: Public number of units, where it is known.
        expected_batch_size: Mean size of a draw, where it is known.
        unit: Whose presence is protected.
        calibration: What chose the noise multiplier, where something did.
        delta_source: ``GIVEN``, or the rule that made delta of the number of units.
        steps: How many there are, in words, where those are not all that cost.
        sampler: How units are drawn.

    Guarantees:
        Upper bounds are rounded up and lower bounds down, to ``DECIMALS`` decimals.
    """
    rows = _mechanism_rows(report, num_examples, expected_batch_size, calibration)
    if steps is not None:
        rows = [(label, steps if label == "steps" else value) for label, value in rows]
    lines = [f"{label:<20}{value}" for label, value in rows]
    lines += ["", *accountant_lines(report.epsilons)]
    mechanism = report.mechanism
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
    """Returns every accountant's answer on a line, under a line of headings."""
    heading = f"{'accountant':<12}{'lower':>14}{'estimate':>14}{'upper':>14}"
    return [heading, *(_accountant_line(name, answer) for name, answer in epsilons.items())]


def warning_lines(warnings: Iterable[str], *, label: str = "warning") -> list[str]:
    """Returns each warning, wrapped to ``WIDTH`` columns."""
    return [_wrapped(f"{label}: {warning}", indent=len(label) + 2) for warning in warnings]


def headline_of(
    epsilon: float,
    *,
    delta: float,
    accountant: str,
    steps: str,
    unit: str,
    sampler: str = SAMPLER,
) -> str:
    """Returns epsilon with all that it depends on, as lines of text of ``WIDTH`` columns.

    Args:
        epsilon: An upper bound; it is rounded up.
        delta: The delta that epsilon goes with, in (0, 1); it is rounded up.
        accountant: Who computed the bound.
        steps: What was composed, in words: "100 steps".
        unit: What one privacy unit is called.
        sampler: How units were drawn.
    """
    return _wrapped(
        f"epsilon = {eps_text(epsilon)} (upper bound by {accountant}) at "
        f"delta = {delta_text(delta)}, neighboring relation {NEIGHBORING_RELATION} of one "
        f"{unit}, sampler {sampler}, {steps}",
        indent=0,
    )


def delta_warnings(delta: float, num_examples: int, *, source: str) -> list[str]:
    """Returns a warning where delta is so large that it promises little.

    A mechanism that now and then releases one of ``num_examples`` records, chosen at random,
    satisfies delta alone if it does so with probability ``delta * num_examples``. Of the papers'
    1/(2 * num_examples) ``delta_notes`` says so, since nobody chose it.

    Args:
        delta: The promised one.
        num_examples: The public number of units.
        source: ``GIVEN``, or the rule that made delta of the number.
    """
    if delta >= 1 / num_examples:
        relation = "equal to" if delta == 1 / num_examples else "above"
        return [
            f"delta = {delta:.3g} is {relation} 1/num_examples = {1 / num_examples:.3g}: releasing"
            " one whole record at random would satisfy it; choose a smaller one."
        ]
    if source == GIVEN and delta > SMALL_SHARE / num_examples:
        return [
            f"delta = {delta:.3g} is above 1/(10*num_examples) = {SMALL_SHARE / num_examples:.3g}:"
            " releasing one whole record at random with probability"
            f" {delta * num_examples:.2g} would satisfy it; choose a smaller one."
        ]
    if delta > LARGE_DELTA:
        return [
            f"delta = {delta:.3g} is above {LARGE_DELTA:g}: a promise may fail outright with that"
            " probability, however few the records are; choose a smaller one."
        ]
    return []


def delta_notes(num_examples: int, *, source: str | None) -> list[str]:
    """Returns the sentence that goes with the papers' delta; nothing for another one.

    Args:
        num_examples: The public number of units.
        source: ``GIVEN``, or the rule that made delta of the number; None: an old run's, unknown.
    """
    if source != PUBLISHED:
        return []
    own = default_delta(num_examples, OWN_DATA)
    return [
        f"delta is 1/(2n) for n = {num_examples}, as the papers have it: releasing one whole record"
        " at random with probability 0.5 would satisfy it. For data of your own the default is"
        f" 1/(10n), rounded down to one digit: {own:g}."
    ]


def _mechanism_rows(
    report: AccountingReport,
    num_examples: int | None,
    expected_batch_size: float | None,
    calibration: Calibration | None,
) -> list[tuple[str, str]]:
    mechanism = report.mechanism
    rows = [("noise multiplier", f"{mechanism.noise_multiplier:.6g}")]
    if calibration is not None:
        rows.append(("chosen by", f"{calibration.accountant} ({calibration.grid})"))
    rows.append(("sample rate", f"{mechanism.sample_rate:.6g}"))
    if expected_batch_size is not None:
        rows.append(("expected batch size", f"{expected_batch_size:g}"))
    if num_examples is not None:
        rows.append(("examples", f"{num_examples} (taken as public)"))
    return [*rows, ("steps", f"{mechanism.steps}"), ("delta", delta_text(mechanism.delta))]


def _accountant_line(name: str, answer: Answer) -> str:
    """Returns a line of the table; why an accountant failed is wrapped under its name."""
    if isinstance(answer, NoAnswer):
        return textwrap.fill(
            answer.error, WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12
        )
    lower, estimate, upper = _cells(name, answer)
    note = "  (not a bound)" if name == "gdp" else ""
    return f"{name:<12}{lower:>14}{estimate:>14}{upper:>14}{note}".rstrip()


def _cells(name: str, answer: float | Interval) -> tuple[str, str, str]:
    if isinstance(answer, Interval):
        return (
            _lower(answer.lower),
            f"{answer.estimate:.{DECIMALS}f}",
            eps_text(answer.upper),
        )
    if name == "gdp":
        return "", f"{answer:.{DECIMALS}f}", ""
    return "", "", eps_text(answer)


def _lower(value: float) -> str:
    return f"{abs(round_up(-value, DECIMALS)):.{DECIMALS}f}"


def _wrapped(text: str, *, indent: int) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
