"""What several runs on the same records cost together.

Two bounds, the lower of which is reported: the sum of the runs' epsilons, at the sum of their
deltas (basic composition), and that of their composed Renyi divergences at the same delta, which
is lower for all but a few runs. A run whose mechanism is not a sampled Gaussian, as a search's,
counts by its epsilon in both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian

SUM, RDP = "sum of epsilons", "rdp"


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """What one run spent."""

    epsilon: float
    """A proven upper bound."""
    delta: float
    mechanisms: tuple[SampledGaussian, ...] = ()
    """Its steps, where it is nothing but sampled Gaussians; else its epsilon is all there is."""


@dataclass(frozen=True, kw_only=True)
class ComposedCost:
    """What runs spent together."""

    epsilon: float
    """A proven upper bound."""
    delta: float
    """The sum of the runs' deltas."""
    accountant: str
    """``SUM`` or ``RDP``."""


def compose_runs(costs: Sequence[RunCost]) -> ComposedCost:
    """Returns a bound on what runs that share records, unit and neighbors cost together.

    Args:
        costs: Of the runs, at least one.
    """
    delta = math.fsum(cost.delta for cost in costs)
    total = math.fsum(cost.epsilon for cost in costs)
    composed = _by_rdp(costs)
    if composed < total:
        return ComposedCost(epsilon=composed, delta=delta, accountant=RDP)
    return ComposedCost(epsilon=total, delta=delta, accountant=SUM)


def _by_rdp(costs: Sequence[RunCost]) -> float:
    """Returns epsilon at the sum of deltas; infinite where no order bounds it."""
    gaussian = [cost for cost in costs if cost.mechanisms]
    others = math.fsum(cost.epsilon for cost in costs if not cost.mechanisms)
    if not gaussian:
        return others
    mechanisms = [mechanism for cost in gaussian for mechanism in cost.mechanisms]
    divergences: np.ndarray = np.sum([rdp.curve(mechanism) for mechanism in mechanisms], axis=0)
    delta = math.fsum(cost.delta for cost in gaussian)
    try:
        upper = rdp.epsilon_of_curve(divergences, delta).upper
    except AccountantError:
        upper = None
    return math.inf if upper is None else upper + others
