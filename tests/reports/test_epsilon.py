"""Tables and plots of what accountants answer."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport, Interval, NoAnswer
from dpft.reports.epsilon import (
    accounting_table,
    curve_table,
    failure_notes,
    plot_epsilon_over_steps,
)

MECHANISM = SampledGaussian(
    noise_multiplier=1.01476, sample_rate=1024 / 42061, steps=410, delta=1 / (2 * 42061)
)
PRV = Interval(lower=2.97699, estimate=2.98712, upper=2.99731)
CALIBRATION = Calibration(accountant="prv", epsilon=2.99731, grid="eps_error 0.01")


@pytest.fixture
def report():
    return AccountingReport(
        mechanism=MECHANISM,
        epsilon=2.99731,
        delta=MECHANISM.delta,
        accountant="prv",
        epsilons={"rdp": NoAnswer(error="It timed out " + "x " * 60), "gdp": 2.56, "prv": PRV},
        warnings=("rdp gave no bound: it timed out. " * 4,),
    )


@pytest.fixture
def table(report):
    return accounting_table(
        report, num_examples=42061, expected_batch_size=1024, calibration=CALIBRATION
    )


def test_the_table_fits_a_pipe_of_80_columns(table):
    assert max(len(line) for line in table.splitlines()) <= 80
    assert table.isascii()
    assert "\x1b" not in table


def test_huge_epsilons_are_printed_as_powers_of_ten(report):
    huge = report.replace(epsilon=1234567890.5, epsilons={"rdp": 1234567890.5, "gdp": 4.951e35})
    table = accounting_table(
        huge, num_examples=42061, expected_batch_size=1024, calibration=CALIBRATION
    )
    assert "1.235e+09\n" in table and "4.951e+35" in table
    assert "epsilon = 1.235e+09 " in table
    assert max(map(len, table.splitlines())) <= 80


def test_upper_bounds_are_rounded_up_and_lower_bounds_down(table):
    assert "prv                 2.9769        2.9871        2.9974" in table


def test_trust_rule_6_the_headline_is_a_whole_tuple(report):
    text = " ".join(accounting_table(report).split()).partition("epsilon = ")
    text = "".join(text[1:])
    for part in (
        "epsilon = 2.9974",
        "upper bound by prv",
        "delta = 1.189e-05",
        "add_or_remove_one",
        "one example",
        "poisson",
        "410 steps",
    ):
        assert part in text


def test_gdp_is_marked_as_no_bound(table):
    (line,) = (line for line in table.splitlines() if line.startswith("gdp"))
    assert line.endswith("(not a bound)")


def test_failures_and_warnings_are_shown(table):
    assert "rdp         It timed out" in table
    assert "warning: rdp gave no bound" in table


def report_after(steps: int) -> AccountingReport:
    mechanism = SampledGaussian(noise_multiplier=1, sample_rate=0.1, steps=steps, delta=1e-5)
    epsilons = {"rdp": 3.0 * steps, "gdp": 2.0, "pld": 2.0 * steps, "prv": NoAnswer(error="no")}
    return AccountingReport(
        mechanism=mechanism,
        epsilon=2.0 * steps,
        delta=mechanism.delta,
        accountant="pld",
        epsilons=epsilons,
    )


def texts(path: Path) -> set[str]:
    """The words in an SVG, which are text and not outlines."""
    return {"".join(node.itertext()).strip() for node in ElementTree.parse(path).iter()}


@pytest.mark.slow
def test_epsilon_over_steps_names_every_accountant_that_answered(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    plot_epsilon_over_steps([report_after(1), report_after(2)], path)
    found = texts(path)
    assert {"steps", "rdp (upper bound)", "pld (upper bound)", "gdp (estimate, no bound)"} <= found
    assert not any(text.startswith("prv") for text in found)


@pytest.mark.slow
def test_the_same_numbers_are_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("svg", "png"):
        paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
        for path in paths:
            plot_epsilon_over_steps([report_after(1), report_after(2)], path)
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_curves_table_rounds_up_and_says_who_failed_where() -> None:
    first = report_after(1).replace(epsilon=2.00001)
    lines = curve_table([first, report_after(3)]).splitlines()
    assert lines[1].split() == ["1", "3.0000", "2.0000", "2.0000", "-", "2.0001", "pld"]
    assert failure_notes([first, report_after(3)]) == [
        "prv gave no bound at 2 of 2 points, steps 1, 3: no"
    ]
    assert "warning: prv gave no bound at 2 of 2 points" in "\n".join(lines)
