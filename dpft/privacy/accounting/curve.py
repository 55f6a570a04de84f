"""Epsilon as a run goes on, cheap enough to show after every step."""

import math
from bisect import bisect_left
from functools import cached_property

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from dpft.privacy.plan import PrivacyPlan

POINTS = 10


class EpsilonSoFar:
    """An upper bound of epsilon after any number of a plan's steps, or of more than planned.

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
        self._further: dict[int, float] = {}

    def __call__(self, steps: int) -> float:
        """Returns the bound after ``steps`` steps; 0 before the first."""
        if steps == 0:
            return 0.0
        if steps > self._plan.steps:
            return self._beyond(steps)
        return min(self._whole, self._bounds[bisect_left(self._grid, steps)])

    @cached_property
    def _grid(self) -> list[int]:
        points = min(POINTS, self._plan.steps)
        return [-(-self._plan.steps * (point + 1) // points) for point in range(points)]

    def _beyond(self, steps: int) -> float:
        """Returns RDP's bound, at whole tenths of the plan, for a resume that took steps again."""
        tenth = self._grid[0]
        rounded = -(-steps // tenth) * tenth
        if rounded not in self._further:
            self._further[rounded] = self._bound(rounded)
        return self._further[rounded]

    @cached_property
    def _bounds(self) -> list[float]:
        return [self._bound(steps) for steps in self._grid]

    def _bound(self, steps: int) -> float:
        mechanism = SampledGaussian(
            noise_multiplier=self._plan.noise_multiplier,
            sample_rate=self._plan.sample_rate,
            steps=steps,
            delta=self._plan.delta,
        )
        try:
            upper = rdp.epsilon_of_curve(rdp.curve(mechanism), mechanism.delta).upper
        except AccountantError:
            upper = None
        return math.inf if upper is None else upper
