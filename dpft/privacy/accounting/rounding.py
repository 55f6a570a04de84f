"""How bounds are printed: rounded up, so that what is read still holds.

A delta printed below the proven one claims too much, as an epsilon does.
"""

from decimal import ROUND_CEILING, Decimal

SIGNIFICANT = 4
"""Digits of a printed delta."""
DECIMALS = 4
"""Decimals of a printed epsilon."""
SMALLEST_WRITTEN_OUT = -3
"""The power of ten from which on a figure is written without one."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def figure_up(bound: float) -> str:
    """Returns a bound in three digits, rounded up, to be read from afar.

    >>> figure_up(2.9981), figure_up(12.31), figure_up(1 / 730), figure_up(1.1887e-5)
    ('3.00', '12.4', '0.00137', '1.19 × 10⁻⁵')
    """
    if not 0 < bound < 2**53:
        return f"{bound:g}"
    number = Decimal(repr(bound))
    number = number.quantize(Decimal(1).scaleb(number.adjusted() - 2), ROUND_CEILING)
    if number.adjusted() >= SMALLEST_WRITTEN_OUT:
        return f"{number:.{max(0, 2 - number.adjusted())}f}"
    digits = number.scaleb(-number.adjusted()).normalize()
    return f"{digits:f} × 10{str(number.adjusted()).translate(SUPERSCRIPT)}"


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
