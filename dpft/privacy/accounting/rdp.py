"""Accounting by Renyi differential privacy (RDP) of the sampled Gaussian, with dp_accounting.

Mironov et al. 2019 (arXiv 1908.10530), section 3.3, with the conversion to (epsilon, delta) of
arXiv 2004.00010, Proposition 12. It never fails and is never tight: the check on the other
accountants, and the last resort.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from dpft.privacy.accounting.mechanism import Epsilon, Mechanism, SampledGaussian

if TYPE_CHECKING:
    import dp_accounting
    import numpy as np
    from numpy.typing import NDArray

ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 2048, 4096),
)
"""dp_accounting's default orders and, for small epsilons, more of the large ones. Every order
gives a valid bound, so more of them only tighten."""

GRID = f"{len(ORDERS)} Renyi orders from 1.1 to 4096"


def epsilon(mechanism: Mechanism) -> Epsilon:
    """Returns the RDP upper bound, for add-or-remove-one neighbors.

    Args:
        mechanism: What to account for; its ``delta`` is the target.
    """
    if isinstance(mechanism, SampledGaussian):
        return epsilon_of_curve(curve(mechanism), mechanism.delta)
    return Epsilon(upper=_accountant(mechanism).get_epsilon(mechanism.delta))


def curve(mechanism: SampledGaussian) -> "NDArray[np.float64]":
    """Returns the Renyi divergence at each of ``ORDERS``, for add-or-remove-one neighbors.

    Args:
        mechanism: What to account for; its ``delta`` is not read.
    """
    return mechanism.steps * _one_step(mechanism.noise_multiplier, mechanism.sample_rate)


@lru_cache(maxsize=256)
def _one_step(noise_multiplier: float, sample_rate: float) -> "NDArray[np.float64]":
    """Returns the divergences of one step, kept: a run asks for them again and again."""
    step = SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=1, delta=0.5
    )
    divergences: NDArray[np.float64] = _accountant(step).rdp
    return divergences


def epsilon_of_curve(divergences: "NDArray[np.float64]", delta: float) -> Epsilon:
    """Returns the upper bound that divergences at ``ORDERS`` convert to.

    Args:
        divergences: At each of ``ORDERS``, shape (len(ORDERS),).
        delta: The target.
    """
    import dp_accounting

    return Epsilon(upper=dp_accounting.rdp.compute_epsilon(ORDERS, list(divergences), delta)[0])


def _accountant(mechanism: Mechanism) -> "dp_accounting.rdp.RdpAccountant":
    import dp_accounting

    _silence_excluded_orders()
    accountant = dp_accounting.rdp.RdpAccountant(
        ORDERS, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(mechanism.event())
    return accountant


def epsilons(mechanism: SampledGaussian, steps: Sequence[int]) -> list[float]:
    """Returns the RDP upper bound after each number of steps, all at the price of one.

    Args:
        mechanism: What each step is; its own ``steps`` do not matter.
        steps: Numbers of steps, each at least 1.
    """
    one = curve(replace(mechanism, steps=1))
    bounds = (epsilon_of_curve(one * count, mechanism.delta).upper for count in steps)
    return [float(bound) for bound in bounds if bound is not None]


@cache
def _silence_excluded_orders() -> None:
    """Drops absl's warning that an order did not converge: the order is left out, no more."""
    logging.getLogger("absl").addFilter(
        lambda record: "Excluding this order" not in record.getMessage()
    )
