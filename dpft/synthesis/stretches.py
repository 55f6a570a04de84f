"""Numbers and days in ten equal stretches of the range that the schema gives them."""

import datetime
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dpft.synthesis.columns import Category, Column, Day, Flag, Number, Text

STRETCHES = 10


def marginal(column: Column, values: Sequence[Any]) -> dict[str, int]:
    """Returns how often a column's values stand there, by value or by stretch of its range."""
    there = [value for value in values if value is not None]
    if isinstance(column, Category | Flag):
        found = Counter(there)
        options = [option for option in column.options if option is not None]
        return {str(column.cell(option)): found[option] for option in options}
    if isinstance(column, Text):
        counts = Counter(len(value.split()) // 5 * 5 for value in there)
        return {f"{least} to {least + 4} words": counts[least] for least in sorted(counts)}
    places = Counter(stretch(column, value) for value in there)
    return {stretch_name(column, at): places[at] for at in range(STRETCHES) if places[at]}


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
