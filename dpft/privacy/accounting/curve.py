"""Epsilon as a run goes on, cheap enough to show after every step."""

import math

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import AccountantError
from dpft.privacy.plan import PrivacyPlan


class EpsilonSoFar:
    """An upper bound of epsilon after any number of a plan's steps, or of more than planned.

    Guarantees:
        ``curve(n)`` is at least the epsilon of the first n steps: it is RDP's bound of n steps, or
        the bound of the whole plan, which covers its every prefix, if that is lower.
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
        bound = self._bound(steps)
        return bound if steps > self._plan.steps else min(self._whole, bound)

    def _bound(self, steps: int) -> float:
        mechanism = self._plan.mechanism(steps)
        try:
            upper = rdp.epsilon_of_curve(rdp.curve(mechanism), mechanism.delta).upper
        except AccountantError:
            upper = None
        return math.inf if upper is None else upper
