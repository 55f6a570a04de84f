import pytest

from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport
from dpft.records.costs import Interval, NoAnswer
from dpft.records.ledger import Calibration
from dpft.reports.epsilon import accounting_table

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
