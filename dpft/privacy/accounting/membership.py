"""What epsilon and delta mean to a test of membership: how often it can be right.

A test sees the released model, knows every record but those of one unit, and says whether that unit
was among those trained on. Where the mechanism is (eps, delta)-differentially private, its errors
satisfy ``false_positives + e^eps * false_negatives >= 1 - delta``, and the same with the two
exchanged (Kairouz et al. 2015, arXiv 1311.0776, Theorem 2.1). The sum of both bounds the advantage,
``1 - false_positives - false_negatives``, by ``(e^eps - 1 + 2 delta) / (e^eps + 1)``. Where either
case is as likely as the other, the test is therefore wrong with a probability of at least
``(1 - delta) / (e^eps + 1)``; some mechanism of this epsilon and delta meets it with equality.
"""

from decimal import ROUND_FLOOR, Context, Decimal

EXACT = Context(prec=60, traps=[])
"""In how many digits the bound is computed, so that only printing rounds; e^1e9 is infinite."""
SIGNIFICANT, DECIMALS = 2, 1
"""Digits of the least percentage of errors as it is printed, and decimals, whichever is more."""
LEAST_ERROR = Decimal("1e-6")
"""An error this rare is none to a reader: no percentage is printed."""


def least_error(epsilon: float, delta: float) -> Decimal:
    """Returns how often, at least, a test of membership is wrong, in [0, 1/2].

    Args:
        epsilon: At least 0.
        delta: In [0, 1].
    """
    weight = EXACT.add(EXACT.exp(Decimal(epsilon)), 1)
    return EXACT.divide(EXACT.subtract(1, Decimal(delta)), weight)


def most_right(epsilon: float, delta: float) -> str | None:
    """Returns, in percent and rounded up, how often a test of membership can be right.

    None where that is so close to always that the bound tells nothing.

    Guarantees:
        The printed number is never below the bound, and below 100.

    >>> most_right(0.0, 0.0), most_right(3.0, 1e-5), most_right(8.0, 1e-5), most_right(40.0, 1e-5)
    ('50', '95.3', '99.967', None)
    """
    error = least_error(epsilon, delta)
    if error < LEAST_ERROR:
        return None
    last = Decimal(1).scaleb(min((error * 100).adjusted() - SIGNIFICANT + 1, -DECIMALS))
    percent = (error * 100).quantize(last, rounding=ROUND_FLOOR)
    return f"{(100 - percent).normalize():f}"
