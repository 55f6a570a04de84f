"""Patterns of ranges against the numbers and days themselves, one by one."""

import datetime
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.synthesis.columns import days, decimals

ENDS = st.tuples(st.integers(-1200, 1200), st.integers(-1200, 1200)).map(sorted)


@given(ENDS)
def test_whole_numbers_are_those_between_the_ends_and_no_others(ends: list[int]) -> None:
    least, most = ends
    pattern = re.compile(decimals(least, most, places=0))
    found = {number for number in range(-1500, 1501) if pattern.fullmatch(str(number))}
    assert found == set(range(least, most + 1))
    assert not pattern.fullmatch("-0") and not pattern.fullmatch("00")


@given(st.integers(-(10**30), 10**30), st.integers(0, 10**30), st.integers(-(10**31), 10**31))
def test_large_numbers_are_compared_as_numbers(least: int, span: int, number: int) -> None:
    matches = re.fullmatch(decimals(least, least + span, places=0), str(number)) is not None
    assert matches == (least <= number <= least + span)


@given(ENDS, st.integers(1, 3))
def test_decimals_have_all_their_places(ends: list[int], places: int) -> None:
    least, most = ends
    pattern = re.compile(decimals(least, most, places=places))
    spelled = {f"{number / 10**places:.{places}f}": number for number in range(-1500, 1501)}
    assert {number for text, number in spelled.items() if pattern.fullmatch(text)} == set(
        range(least, most + 1)
    )
    assert not pattern.fullmatch(f"{least}")


DAYS = st.dates(datetime.date(1895, 1, 1), datetime.date(1908, 12, 31))


@settings(max_examples=30)
@given(DAYS, DAYS)
def test_days_are_those_of_the_calendar(one: datetime.date, other: datetime.date) -> None:
    """1900 was no leap year, 1904 was one."""
    first, last = sorted((one, other))
    pattern = re.compile(days(first, last))
    found = {
        text
        for year in range(1894, 1910)
        for month in range(14)
        for day in range(33)
        if pattern.fullmatch(text := f"{year:04d}-{month:02d}-{day:02d}")
    }
    span = (last - first).days + 1
    assert found == {str(first + datetime.timedelta(days=number)) for number in range(span)}


def test_ends_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        decimals(2, 1, places=0)
    with pytest.raises(ValueError, match="at most"):
        days(datetime.date(2020, 1, 2), datetime.date(2020, 1, 1))
