"""Accounting by privacy loss distributions (PLD), with dp_accounting: an upper bound.

Koskela et al. 2020 (arXiv 1906.03049) with the pessimistic connect-the-dots grid of Doroshenko et
al. 2022 (arXiv 2207.04380). The result is an upper bound on any grid, apart from rounding. The
library composes in float64. After 1e5 steps its rounding changes delta by 1e-11, which at delta =
2e-10 put epsilon 0.012 below the truth. This module therefore computes epsilon at a delta that is
smaller by that amount.

Time and memory grow with the number of points of the grid. This number is computed before one step
is discretized and again before the steps are composed. A grid that is too large is rejected.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from dpft.privacy.accounting.mechanism import (
    AccountantError,
    Composition,
    Epsilon,
    Mechanism,
    delta_within_rounding,
    rounding_slack,
)

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-3
"""Grid for tables and brackets: ten times faster than 1e-4, with epsilons equal to within 2e-4."""

FINE_INTERVAL = 1e-4
"""Grid for a bound that the coarse grid makes too loose."""

SMALL_EPSILON = 0.1
"""Epsilon below which the fine grid costs little, and rounding on the coarse grid is a large
share."""

MAX_STEP_POINTS = 2**21
"""Maximum number of points for one step: about 10 s and half a GiB."""

MAX_POINTS = 2**23
"""Maximum number of points for all steps: about 3 s and 1 GiB."""

MANY_STEPS = 1000
TAIL_MASS = 1e-15
"""Mass that the library cuts off each tail of a composition."""

GRID = f"value_discretization_interval {INTERVAL:g} ({FINE_INTERVAL:g} below {SMALL_EPSILON:g})"


def epsilon(mechanism: Mechanism, interval: float = INTERVAL) -> Epsilon:
    """Return the PLD upper bound, for add-or-remove-one neighbors.

    Args:
        mechanism: Mechanism to account for; its ``delta`` is the target.
        interval: Spacing of the grid to which privacy losses are rounded up, in nats.
            Bounds below ``SMALL_EPSILON`` are computed again with ``FINE_INTERVAL``.

    Guarantees:
        The bound is computed at ``delta - rounding_slack``, so that float64 rounding cannot make it
        an underestimate.

    Raises:
        AccountantError: Rounding could take more than half of delta, or the grid would be too
            large.
    """
    delta = delta_within_rounding(mechanism, sys.float_info.epsilon)
    bound: float = _composed(mechanism, interval).get_epsilon_for_delta(delta)
    if bound < SMALL_EPSILON and interval > FINE_INTERVAL:
        with suppress(AccountantError):  # the fine grid may be too large
            bound = min(bound, _composed(mechanism, FINE_INTERVAL).get_epsilon_for_delta(delta))
    return Epsilon(upper=bound)


def deltas(
    mechanism: Mechanism, epsilons: Sequence[float], interval: float = INTERVAL
) -> list[float]:
    """Return the PLD upper bound of delta at each epsilon, for add-or-remove-one neighbors.

    Args:
        mechanism: Mechanism to account for; its ``delta`` is not used.
        epsilons: Epsilons, each at least 0.
        interval: As in ``epsilon``.

    Guarantees:
        The amount by which float64 rounding could lower a bound is added to it
        (``rounding_slack``).
    """
    slack = rounding_slack(mechanism.steps, sys.float_info.epsilon)
    bounds = _composed(mechanism, interval).get_delta_for_epsilon(list(epsilons))
    return [min(1.0, max(0.0, float(bound)) + slack) for bound in bounds]


@lru_cache(maxsize=4)
def _composed(mechanism: Mechanism, interval: float) -> "PrivacyLossDistribution":
    """Return the distribution of all steps, cached because several callers need it."""
    import dp_accounting

    parts = mechanism.parts if isinstance(mechanism, Composition) else (mechanism,)
    ones = [_one_step(part.noise_multiplier, part.accounted_rate, interval) for part in parts]
    points = sum(_points(one, part.steps) for one, part in zip(ones, parts, strict=True))
    _check_size(points, MAX_POINTS)
    whole = dp_accounting.pld.privacy_loss_distribution.identity(interval)
    for one, part in zip(ones, parts, strict=True):
        whole = whole.compose(_dense(one, part.steps).self_compose(part.steps))
    return whole


def _points(one: "PrivacyLossDistribution", steps: int) -> int:
    """Return the number of points of the distribution of a number of steps."""
    from dp_accounting.pld import common

    # The library has no public access to the masses of a distribution.
    masses = [pmf.to_dense_pmf()._probs for pmf in (one._pmf_remove, one._pmf_add)]
    bounds = [common.compute_self_convolve_bounds(mass, steps, TAIL_MASS) for mass in masses]
    return max(int(upper - lower) for lower, upper in bounds)


def _dense(one: "PrivacyLossDistribution", steps: int) -> "PrivacyLossDistribution":
    """Return the distribution with its masses in an array, for the cases that the library converts.

    To decide on this conversion, the library computes an exact integer: the number of points to the
    power of steps. This takes 5 s at ten million steps.
    """
    import dp_accounting

    pmfs = [one._pmf_remove, *([] if one._symmetric else [one._pmf_add])]
    if steps < MANY_STEPS or min(pmf.size for pmf in pmfs) < 2:
        return one
    kind = dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution
    return kind(*(pmf.to_dense_pmf() for pmf in pmfs))


def _check_size(points: float, most: int) -> None:
    if not points <= most:
        raise AccountantError(f"It needs a grid of {points:.2g} points; at most {most} are used.")


@lru_cache(maxsize=4)
def _one_step(
    noise_multiplier: float, sample_rate: float, interval: float
) -> "PrivacyLossDistribution":
    """Return the distribution of one step, cached because it dominates the cost."""
    import dp_accounting
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    for kind in (AdjacencyType.ADD, AdjacencyType.REMOVE):
        loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sample_rate, adjacency_type=kind)
        ends = loss.connect_dots_bounds()
        _check_size((ends.epsilon_upper - ends.epsilon_lower) / interval, MAX_STEP_POINTS)
    return dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=sample_rate,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
