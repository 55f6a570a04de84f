"""How bounds are printed: rounded up, so that what is read still holds.

A delta printed below the proven one claims too much, as an epsilon does.
"""

from decimal import ROUND_CEILING, Decimal

SIGNIFICANT = 4
"""Digits of a printed delta."""
DECIMALS = 4
"""Decimals of a printed epsilon."""


def round_up(value: float, digits: int) -> float:
    """Returns ``value`` rounded up to ``digits`` decimals: a printed bound is still a bound.

    >>> round_up(2.9901, 2), round_up(2.99, 2), round_up(0.0, 2)
    (3.0, 2.99, 0.0)
    """
    if abs(value) >= 2**53:  # No float of this size has decimals, and infinity has none either.
        return value
    # repr, not the binary expansion: 2.99 is stored as 2.9900000000000002 and must stay 2.99.
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING))


def up(epsilon: float) -> str:
    """Returns an epsilon as it is printed.

    >>> up(2.99991)
    '3.0000'
    """
    return f"{round_up(epsilon, DECIMALS):.{DECIMALS}f}"


def delta_up(delta: float) -> str:
    """Returns a delta as it is printed.

    >>> delta_up(1 / (2 * 392_702)), delta_up(0.0125), delta_up(1e-5)
    ('1.274e-06', '0.0125', '1e-05')
    """
    if delta == 0:
        return "0"
    number = Decimal(repr(delta))
    last = number.adjusted() - SIGNIFICANT + 1
    return f"{float(number.quantize(Decimal(1).scaleb(last), ROUND_CEILING)):.{SIGNIFICANT}g}"
