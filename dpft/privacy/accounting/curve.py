"""Epsilon as a run goes on, cheap enough to show after every step."""

import math
from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from dpft.privacy.plan import PrivacyPlan

if TYPE_CHECKING:
    import numpy as np

POINTS = 10


class EpsilonSoFar:
    """An upper bound of epsilon after any number of a plan's steps.

    Guarantees:
        ``curve(n)`` is at least the epsilon of the first n steps: it is RDP's bound of at least
        n steps, or the bound of the whole plan, which covers its every prefix, if that is lower.
    """

    def __init__(self, plan: PrivacyPlan, whole: float) -> None:
        """Prepares for a plan.

        Args:
            plan: The mechanism.
            whole: Upper bound of epsilon for all of its steps.
        """
        self._plan = plan
        self._whole = whole

    def __call__(self, steps: int) -> float:
        """Returns the bound after ``steps`` steps; 0 before the first."""
        if steps == 0:
            return 0.0
        return min(self._whole, self._bounds[bisect_left(self._grid, steps)])

    @cached_property
    def _grid(self) -> list[int]:
        points = min(POINTS, self._plan.steps)
        return [-(-self._plan.steps * (point + 1) // points) for point in range(points)]

    @cached_property
    def _bounds(self) -> list[float]:
        mechanism = SampledGaussian(
            noise_multiplier=self._plan.noise_multiplier,
            sample_rate=self._plan.sample_rate,
            steps=1,
            delta=self._plan.delta,
        )
        one = rdp.curve(mechanism)  # Divergences add up, so those of n steps are n times these.
        return [_bound(one * steps, self._plan.delta) for steps in self._grid]


def _bound(divergences: "np.ndarray", delta: float) -> float:
    try:
        upper = rdp.epsilon_of_curve(divergences, delta).upper
    except AccountantError:
        upper = None
    return math.inf if upper is None else upper
