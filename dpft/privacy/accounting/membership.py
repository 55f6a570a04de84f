"""What epsilon and delta mean to a test of membership: how often it can be right.

A test sees the released model, knows every record but those of one unit, and says whether that unit
was among those trained on. Where the mechanism is (eps, delta)-differentially private, its errors
satisfy ``false_positives + e^eps * false_negatives >= 1 - delta``, and the same with the two
exchanged (Kairouz et al. 2015, arXiv 1311.0776, Theorem 2.1). The sum of both bounds the advantage,
``1 - false_positives - false_negatives``, by ``(e^eps - 1 + 2 delta) / (e^eps + 1)``. Where either
case is as likely as the other, the test is therefore wrong with a probability of at least
``(1 - delta) / (e^eps + 1)``; some mechanism of this epsilon and delta meets it with equality.

Read backwards, what a test can do bounds epsilon from below (``shown_epsilon``).
"""

import math
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


def shown_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float
) -> float:
    """Returns the least epsilon of sampled Gaussian steps that a simple test of membership shows.

    The test adds up the outputs of n steps, which are ``N(0, n s^2)`` without the unit and
    ``N(k, n s^2)`` with it, k binomial, and asks whether the sum is above a number; the best of
    some n and some numbers counts. Milliseconds, where an accountant takes seconds.

    Guarantees:
        No epsilon below it is true of the steps at ``delta``, but for 1e-6 of it by rounding.

    >>> shown = shown_epsilon(noise_multiplier=1.0, sample_rate=1.0, steps=1, delta=1e-5)
    >>> round(shown, 2)  # of one Gaussian step 4.38 is the exact epsilon
    4.38
    """
    some = {*(2**power for power in range(steps.bit_length())), steps}
    return max(_shown_by_sum(noise_multiplier, sample_rate, n, delta) for n in some)


def _shown_by_sum(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    import numpy as np
    from scipy.special import gammaln, log_ndtr, xlog1py, xlogy

    mean, spread = steps * sample_rate, math.sqrt(steps * sample_rate * (1 - sample_rate))
    # What is left out of the binomial lowers what is shown.
    least, most = max(0, int(mean - 12 * spread)), min(steps, int(mean + 12 * spread) + 20)
    joins = np.arange(least, most + 1)
    choices = gammaln(steps + 1) - gammaln(joins + 1) - gammaln(steps - joins + 1)
    rates = choices + xlogy(joins, sample_rate) + xlog1py(steps - joins, -sample_rate)
    moved = joins / (noise_multiplier * math.sqrt(steps))
    bounds = np.linspace(-8.0, min(float(moved[-1]), 1e4) + 8.0, 1000)
    right = np.exp(rates + log_ndtr(moved - bounds[:, None])).sum(1)
    seen = right > delta
    shown = np.log(right[seen] - delta) - log_ndtr(-bounds[seen])
    return float(shown.max(initial=0.0))
