"""Accounting by Renyi differential privacy (RDP) of the sampled Gaussian.

Mironov et al. 2019 (arXiv 1908.10530), section 3.3, with the conversion to (epsilon, delta) of
arXiv 2004.00010, Proposition 12, by dp_accounting. RDP never fails and is never tight. It is the
check for the other accountants, and the fallback.

The divergence at order a is log(A) / (a - 1). dp_accounting adds the terms of A one by one, about
20,000 for all orders. This takes a fifth of a second for each noise multiplier that a calibration
tries. Here the terms of all orders are one array, which is a hundred times as fast.
tests/privacy/accounting/test_rdp.py compares both.
"""

import math
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from dpft.privacy.accounting.mechanism import Composition, Epsilon, Mechanism, SampledGaussian

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 2048, 4096),
)
"""dp_accounting's default orders and, for small epsilons, more large orders. Every order gives a
valid bound, so more orders can only tighten the bound."""

GRID = f"{len(ORDERS)} Renyi orders from 1.1 to 4096"


def epsilon(mechanism: Mechanism) -> Epsilon:
    """Return the RDP upper bound, for add-or-remove-one neighbors.

    Args:
        mechanism: Mechanism to account for; its ``delta`` is the target.
    """
    parts = mechanism.parts if isinstance(mechanism, Composition) else (mechanism,)
    return epsilon_of_curve(sum(map(curve, parts[1:]), curve(parts[0])), mechanism.delta)


def curve(mechanism: SampledGaussian) -> "NDArray[np.float64]":
    """Return the Renyi divergence at each of ``ORDERS``, for add-or-remove-one neighbors.

    Args:
        mechanism: Mechanism to account for; its ``delta`` is not used.
    """
    return mechanism.steps * _one_step(mechanism.noise_multiplier, mechanism.accounted_rate)


@lru_cache(maxsize=256)
def _one_step(noise_multiplier: float, rate: float) -> "NDArray[np.float64]":
    """Return the divergences of one step, cached because a run needs them repeatedly.

    A divergence grows with its order. At fractional orders, a small divergence can consist only of
    rounding errors. It is then replaced by the divergence at the next whole order, whose formula
    loses no digits. Rounding therefore never invalidates a bound.
    """
    import numpy as np

    orders = np.array(ORDERS)
    if rate == 1:
        return orders / (2 * noise_multiplier**2)
    wholes, whole = _at_whole_orders(noise_multiplier, rate)
    above = whole[np.searchsorted(wholes, orders)]
    is_whole = wholes[np.searchsorted(wholes, orders)] == orders
    between = _at_broken_orders(noise_multiplier, rate, orders[~is_whole])
    divergences = above.copy()
    divergences[~is_whole] = np.where(between > _LOST_TO_ROUNDING, between, above[~is_whole])
    return divergences


_LOST_TO_ROUNDING = 1e-12
_MOST_TERMS, _TERMS_AT_ONCE = 1000, 64
_SMALL = 30.0
"""The sum ends at a term of e^-30 of the sum, as in dp_accounting."""


@cache
def _terms_of_whole_orders() -> "tuple[NDArray[Any], ...]":
    """Return all orders, rounded up to whole numbers, and the data of the terms of their sums.

    The terms are sorted by order. Three arrays contain the order a of each term, its power k from 2
    to a, and log(a over k). The last array contains the position of the first term of each order.
    """
    import numpy as np
    from scipy.special import gammaln

    wholes = np.array(sorted({math.ceil(order) for order in ORDERS}))
    order = np.repeat(wholes, wholes - 1).astype(float)
    power = np.concatenate([np.arange(2, whole + 1) for whole in wholes]).astype(float)
    choices = gammaln(order + 1) - gammaln(power + 1) - gammaln(order - power + 1)
    return wholes, order, power, choices, np.cumsum(wholes - 1) - (wholes - 1)


def _at_whole_orders(noise: float, rate: float) -> "tuple[NDArray[Any], NDArray[np.float64]]":
    """Return whole orders and the divergence at each (Mironov et al. 2019, section 3.3).

    A = sum over k of (a over k) (1-q)^(a-k) q^k exp((k^2 - k) / (2 noise^2)). Without the factor
    exp(...), the sum is 1. A - 1 is therefore the same sum with exp(...) - 1. Its terms are at
    least 0, and those with k < 2 are 0.
    """
    import numpy as np

    wholes, order, power, choices, starts = _terms_of_whole_orders()
    grown = (power * power - power) / (2 * noise**2)
    with np.errstate(divide="ignore"):
        less_one = grown + np.log(-np.expm1(-grown))
    terms = choices + power * math.log(rate) + (order - power) * math.log1p(-rate) + less_one
    log_a = np.logaddexp(0, np.logaddexp.reduceat(terms, starts))
    return wholes, log_a / (wholes - 1)


def _at_broken_orders(
    noise: float, rate: float, orders: "NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """Return the divergence at fractional orders; infinity if the series is too long.

    A is an integral over (-inf, z0] plus an integral over [z0, inf), each with its own series
    (Mironov et al. 2019, section 3.3). This function adds the absolute values of the terms, which
    gives an upper bound.
    """
    import numpy as np
    from scipy.special import gammaln, log_ndtr

    log_q, log_rest = math.log(rate), math.log1p(-rate)
    z0 = noise**2 * (log_rest - log_q) + 0.5
    log_a = np.full(len(orders), np.inf)
    left = np.arange(len(orders))
    # For each order and both series: the sum so far and the last term.
    sums = terms = np.full((2, len(orders), 1), -np.inf)
    for first in range(0, _MOST_TERMS, _TERMS_AT_ONCE):
        a = orders[left][:, None]
        i = np.arange(first, min(first + _TERMS_AT_ONCE, _MOST_TERMS), dtype=float)
        j = a - i
        choices = gammaln(a + 1) - gammaln(i + 1) - gammaln(j + 1)
        below = i * log_q + j * log_rest + (i * i - i) / (2 * noise**2) + log_ndtr((z0 - i) / noise)
        above = j * log_q + i * log_rest + (j * j - j) / (2 * noise**2) + log_ndtr((j - z0) / noise)
        terms = np.concatenate([terms[..., -1:], choices + np.stack([below, above])], axis=-1)
        joined = np.concatenate([sums[..., -1:], terms[..., 1:]], axis=-1)
        sums = np.logaddexp.accumulate(joined, axis=-1)
        total = np.logaddexp(*sums)[:, 1:]
        is_last = (np.diff(terms) < 0).all(axis=0) & (terms[..., 1:].max(axis=0) < total - _SMALL)
        ended = is_last.any(axis=1)
        log_a[left[ended]] = total[ended, is_last.argmax(axis=1)[ended]]
        left, sums, terms = left[~ended], sums[:, ~ended], terms[:, ~ended]
        if not len(left):
            break
    return log_a / (orders - 1)


def epsilon_of_curve(divergences: "NDArray[np.float64]", delta: float) -> Epsilon:
    """Return the upper bound that follows from divergences at ``ORDERS``.

    Args:
        divergences: Divergence at each of ``ORDERS``, shape (len(ORDERS),).
        delta: Target delta.
    """
    import dp_accounting

    return Epsilon(upper=dp_accounting.rdp.compute_epsilon(ORDERS, list(divergences), delta)[0])
