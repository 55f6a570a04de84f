"""Bins of a column's values: a category's own, stretches of a range, numbers of words of a text.

Numbers and days fall into ten equal stretches of the range that the schema gives them, so that no
bin follows from the records.
"""

import datetime
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dpft.synthesis.columns import Category, Column, Day, Flag, Number, Text

STRETCHES = 10
WORDS, MOST_WORDS = 5, 50
"""Words of a bin of texts, and from how many on there is one bin for all."""


def marginal(column: Column, values: Sequence[Any]) -> dict[str, int]:
    """Returns how often a column's values fall into each bin that has some, in their order.

    A category's values all stand there.
    """
    found = Counter(bin_of(column, value) for value in values if value is not None)
    if isinstance(column, Category | Flag):
        names = [bin_of(column, option) for option in column.options if option is not None]
    elif isinstance(column, Text):
        names = [_words(at) for at in range(MOST_WORDS // WORDS + 1)]
    else:
        names = [stretch_name(column, at) for at in range(STRETCHES)]
    every = isinstance(column, Category | Flag)
    return {name: found[name] for name in names if every or found[name]}


def bin_of(column: Column, value: Any) -> str:
    """Returns the name of the bin that a value falls into."""
    if isinstance(column, Category | Flag):
        return str(column.cell(value))
    if isinstance(column, Text):
        return _words(min(MOST_WORDS, len(value.split())) // WORDS)
    return stretch_name(column, stretch(column, value))


def _words(at: int) -> str:
    least = at * WORDS
    return f"{least} words and more" if least == MOST_WORDS else f"{least} to {least + 4} words"


def stretch(column: Column, value: Any) -> int:
    """Returns which of ten equal stretches of its column's range a value is in, from 0."""
    if isinstance(column, Day):
        days: int = (value - column.first).days
        return days * STRETCHES // _span_of_days(column)
    assert isinstance(column, Number)
    return int((Decimal(value) - column.low) * STRETCHES // _span(column))


def stretch_name(column: Column, at: int) -> str:
    """Returns where a stretch begins."""
    if isinstance(column, Day):
        days = -(-at * _span_of_days(column) // STRETCHES)
        return f"from {column.first + datetime.timedelta(days=days)}"
    assert isinstance(column, Number)
    return f"from {column.low + at * _span(column) / STRETCHES:.{column.places + 1}f}"


def _span(column: Number) -> Decimal:
    return column.high - column.low + column.size


def _span_of_days(column: Day) -> int:
    return (column.last - column.first).days + 1
