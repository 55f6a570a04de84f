"""A printed bound is never below the proven one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.privacy.accounting.rounding import delta_up, figure_up, round_up, up


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
    assert (up(2.99991), up(3.0), up(0.0)) == ("3.0000", "3.0000", "0.0000")
    assert up(2.99990001) == "3.0000"


@given(st.floats(1e-12, 1 - 1e-9))
def test_a_printed_delta_is_not_below_the_proven_one_and_has_four_digits(delta):
    assert delta <= float(delta_up(delta)) <= delta * (1 + 1e-3)


def test_no_delta_is_printed_as_none():
    assert delta_up(0.0) == "0"


@given(st.floats(1e-12, 1e6))
def test_a_figure_of_three_digits_is_never_below_the_bound(value):
    shown = (
        figure_up(value)
        .replace(" × 10", "e")
        .translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    )
    assert value <= float(shown) <= value * 1.01 * (1 + 1e-12)


def test_a_figure_has_three_digits_and_a_power_of_ten_where_it_is_small():
    values = (2.9981, 99.96, 1 / 730, 1.1887e-5, 1e-5, 0.0, math.inf)
    shown = ["3.00", "100", "0.00137", "1.19 × 10⁻⁵", "1 × 10⁻⁵", "0", "inf"]
    assert [figure_up(value) for value in values] == shown
