r"""Ranges as regular expressions: exactly the whole numbers, decimals or days between two ends.

A grammar that constrains what a model writes knows characters, not numbers: that an age is between
18 and 99 has to be said as ``1[8-9]|[2-9][0-9]``. Every number has one spelling here: no leading
zeros, no plus, no minus before zero; a decimal has all its places; a day is YYYY-MM-DD.

>>> whole_numbers(18, 105)
'(?:1[8-9]|[2-9][0-9]|10[0-5])'
>>> decimals(-5, 25, places=1)
'(?:-0\\.[1-5]|[0-1]\\.[0-9]|2\\.[0-5])'
"""

import calendar
import datetime
from collections.abc import Iterator, Sequence
from itertools import groupby

Digits = tuple[tuple[int, int], ...]
"""For each place of a number the least and the largest digit that may stand there."""


def whole_numbers(least: int, most: int) -> str:
    """Returns a pattern of the whole numbers from ``least`` to ``most``."""
    return decimals(least, most, places=0)


def decimals(least: int, most: int, *, places: int) -> str:
    """Returns a pattern of the decimals between two ends, of so many places after the point.

    Args:
        least: The smallest, in units of the last place: -5 is -0.5 of one place.
        most: The largest; at least as large.
        places: Digits after the point; without any there is no point.
    """
    if least > most:
        raise ValueError(f"least must be at most {most}, got {least}.")
    parts = []
    if least < 0:
        parts += [f"-{each}" for each in _numbers(max(1, -most), -least, places)]
    if most >= 0:
        parts += _numbers(max(0, least), most, places)
    return _either(parts)


def days(first: datetime.date, last: datetime.date) -> str:
    """Returns a pattern of the days between two, both included, as YYYY-MM-DD."""
    if first > last:
        raise ValueError(f"first must be at most {last}, got {first}.")
    of_years = ((f"{year:04d}", _of_year(year, first, last)) for year in _years(first, last))
    named: dict[str, list[str]] = {}
    for year, days_of_year in of_years:
        named.setdefault(days_of_year, []).append(year)
    return _either([f"{_either(years)}-{pattern}" for pattern, years in named.items()])


def _years(first: datetime.date, last: datetime.date) -> range:
    return range(first.year, last.year + 1)


def _of_year(year: int, first: datetime.date, last: datetime.date) -> str:
    """Returns a pattern of the days of a year that are between two days, as MM-DD."""
    named: dict[str, list[str]] = {}
    for month in range(1, 13):
        length = calendar.monthrange(year, month)[1]
        least = first.day if (year, month) == (first.year, first.month) else 1
        most = last.day if (year, month) == (last.year, last.month) else length
        if (first.year, first.month) <= (year, month) <= (last.year, last.month):
            pattern = _either([_spelled(each) for each in _between(least, most, 2)])
            named.setdefault(pattern, []).append(f"{month:02d}")
    return _either([f"{_either(months)}-{pattern}" for pattern, months in named.items()])


def _numbers(least: int, most: int, places: int) -> list[str]:
    """Returns patterns of the numbers between two that are not negative."""
    found = []
    for width in range(places + 1, max(places + 1, len(str(most))) + 1):
        low = 0 if width == places + 1 else 10 ** (width - 1)
        for digits in _between(max(least, low), min(most, 10**width - 1), width):
            text = _spelled(digits[: width - places])
            found.append(text + (r"\." + _spelled(digits[width - places :]) if places else ""))
    return found


def _between(least: int, most: int, width: int) -> Iterator[Digits]:
    """Yields the numbers between two, as places of digits that vary by themselves.

    Args:
        least: The smallest.
        most: The largest; nothing is yielded where it is below ``least``.
        width: Digits of each number, leading zeros among them.
    """
    if least > most:
        return
    if width == 0:
        yield ()
        return
    unit = 10 ** (width - 1)
    first, last = least // unit, most // unit
    if first == last:
        for rest in _between(least % unit, most % unit, width - 1):
            yield ((first, first), *rest)
        return
    if least % unit:
        for rest in _between(least % unit, unit - 1, width - 1):
            yield ((first, first), *rest)
        first += 1
    ends_whole = most % unit == unit - 1
    if first <= (last if ends_whole else last - 1):
        yield ((first, last if ends_whole else last - 1), *(((0, 9),) * (width - 1)))
    if not ends_whole:
        for rest in _between(0, most % unit, width - 1):
            yield ((last, last), *rest)


def _spelled(digits: Sequence[tuple[int, int]]) -> str:
    return "".join(str(low) if low == high else f"[{low}-{high}]" for low, high in digits)


def _either(parts: Sequence[str]) -> str:
    distinct = [part for part, _ in groupby(parts)]
    return distinct[0] if len(distinct) == 1 else f"(?:{'|'.join(distinct)})"
