"""A printed bound is never below the proven one."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.privacy.accounting import summary
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    Epsilon,
    SampledGaussian,
)
from dpft.privacy.accounting.summary import NoAnswer, account, delta_text, eps_text, round_up
from dpft.strict_model import as_json
from tests.rejections import rejects

E2E = {"sample_rate": 1024 / 42061, "steps": 410, "delta": 1 / (2 * 42061)}
MECHANISM = SampledGaussian(noise_multiplier=1.0747, **E2E)


@pytest.fixture
def canned(monkeypatch):
    """Return a function that sets the accountants' upper bounds; a string is a failure."""

    def use(prv=2.67, pld=2.66, rdp=3.0, gdp=2.3, fine_pld=None):
        answers = {"prv": prv, "pld": pld, "rdp": rdp}

        def evaluate(name, mechanism, interval=None):
            if name == "gdp":
                return Epsilon(estimate=gdp)
            value = fine_pld if interval and fine_pld is not None else answers[name]
            if isinstance(value, str):
                raise AccountantError(value)
            if name == "prv":
                return Epsilon(lower=value - 0.02, estimate=value - 0.01, upper=value)
            return Epsilon(upper=value)

        monkeypatch.setattr(summary, "evaluate", evaluate)

    return use


@pytest.mark.slow
def test_reproduces_li_table_7():
    report = account(MECHANISM)
    assert report.epsilons["rdp"] == pytest.approx(3, abs=1e-3)
    # Li et al. 2022, Table 7: "GDP + CLT" 2.33 and "Compose tradeoff func." by PRV 2.67.
    assert report.epsilons["gdp"] == pytest.approx(2.33, abs=0.03)
    assert report.epsilons["prv"].estimate == pytest.approx(2.67, abs=0.03)
    assert report.epsilon == report.epsilons["prv"].upper
    assert (report.accountant, report.warnings) == ("prv", ())


@pytest.mark.slow
def test_where_prv_fails_the_others_answer():
    # Ponomareva et al. 2022, Table 5.
    mechanism = SampledGaussian(
        noise_multiplier=0.4,
        sample_rate=8192 / 5240387307,
        steps=100_000,
        delta=1 / 5240387307,
    )
    report = account(mechanism)
    assert report.epsilons["rdp"] == pytest.approx(6.0573, abs=1e-3)
    assert isinstance(report.epsilons["prv"], NoAnswer)
    assert report.accountant == "pld"
    assert 4.17 < report.epsilon < 6.0573
    assert report.warnings[0].startswith("prv gave no bound: ")
    json.dumps(as_json(report.epsilons))


@pytest.mark.parametrize("accountant", ["prv", "pld", "rdp"])
def test_the_chosen_accountants_upper_bound_is_the_headline(canned, accountant):
    canned()
    report = account(MECHANISM, accountant=accountant)
    expected = {"prv": 2.67, "pld": 2.66, "rdp": 3.0}[accountant]
    assert (report.accountant, report.epsilon) == (accountant, expected)


@pytest.mark.parametrize(
    ("failing", "leader"),
    [
        ({"prv": "no"}, "pld"),
        ({"prv": "no", "pld": "no"}, "rdp"),
        ({"rdp": "no"}, "prv"),
        ({"prv": "no", "rdp": "no"}, "pld"),
    ],
)
def test_headline_falls_back_in_order_and_never_to_gdp(canned, failing, leader):
    canned(**failing)
    report = account(MECHANISM)
    assert report.accountant == leader
    for name in failing:
        assert report.epsilons[name] == NoAnswer(error="no")


def test_no_answer_at_all_is_bad_input(canned):
    canned(prv="no", pld="no", rdp="no")
    with rejects("noise_multiplier"):
        account(MECHANISM)


def test_a_pld_bound_above_rdp_is_refined(canned):
    canned(prv="no", pld=3.04, fine_pld=2.9)
    report = account(MECHANISM, accountant="pld")
    assert (report.accountant, report.epsilon) == ("pld", 2.9)


def test_bounds_still_above_rdp_are_refused(canned):
    canned(prv=3.04, pld=570.0)
    report = account(MECHANISM)
    assert (report.accountant, report.epsilon) == ("rdp", 3.0)
    assert [warning.split()[0] for warning in report.warnings[:2]] == ["prv", "pld"]


@pytest.mark.parametrize(("pld", "disagrees"), [(2.66, False), (2.70, False), (2.75, True)])
def test_where_prv_and_pld_disagree_the_larger_is_reported_with_a_warning(canned, pld, disagrees):
    canned(pld=pld)
    report = account(MECHANISM)  # PRV's estimate is 2.66.
    assert any("disagree" in warning for warning in report.warnings) is disagrees
    assert (report.accountant, report.epsilon) == (("pld", pld) if disagrees else ("prv", 2.67))


def test_of_bounds_that_disagree_prvs_may_be_the_larger_and_one_looser_than_rdp_is_left_out(
    canned,
):
    canned(pld=2.5)
    report = account(MECHANISM, accountant="pld")
    assert (report.accountant, report.epsilon) == ("prv", 2.67)
    canned(pld=570.0, fine_pld=570.0)
    report = account(MECHANISM)
    assert (report.accountant, report.epsilon) == ("prv", 2.67)


@given(st.floats(0, 1e6), st.integers(0, 6))
def test_rounding_up_never_goes_down_and_less_than_a_digit_up(value, digits):
    rounded = round_up(value, digits)
    assert value <= rounded <= value + 10**-digits * (1 + 1e-6)


def test_rounding_up_keeps_what_is_round():
    assert (round_up(2.99, 2), round_up(2.9900001, 2), round_up(0.0, 2)) == (2.99, 3.0, 0.0)


@pytest.mark.parametrize("value", [2.0**53, 1e300, math.inf])
def test_what_has_no_decimals_stays_as_it_is(value):
    assert round_up(value, 2) == value


def test_an_epsilon_is_printed_with_four_decimals_rounded_up():
    assert (eps_text(2.99991), eps_text(3.0), eps_text(0.0)) == (
        "3.0000",
        "3.0000",
        "0.0000",
    )
    assert eps_text(2.99990001) == "3.0000"


@given(st.floats(1e-12, 1 - 1e-9))
def test_a_printed_delta_is_not_below_the_proven_one_and_has_four_digits(delta):
    assert delta <= float(delta_text(delta)) <= delta * (1 + 1e-3)
