"""The rows of a batch by privacy unit: norms of units, and sums weighted by units' factors."""

from collections.abc import Sequence

from torch import Tensor

from dpft.privacy.clipping.engines.base import ClipDecision
from dpft.privacy.clipping.norms import squared_norms
from dpft.privacy.clipping.units import Units
from dpft.privacy.clipping.uses import GradientUse, Use


class Rows:
    """The rows of one batch; without units each row is a unit of its own.

    Gradients that are formed as tensors are added up by unit before anything else, so that what
    is summed is what the norm was taken of, to the last digit. Factored uses stay by row, and
    each row is weighted by its unit's factor.
    """

    def __init__(self, losses: Tensor, units: Tensor | None) -> None:
        """Groups the rows of ``losses``."""
        self._units = None if units is None else Units.of(units)
        finite = losses.detach().isfinite()
        self.finite = finite if self._units is None else self._units.sum((~finite).int()) == 0
        """Which units have finite losses only, shape (units,)."""

    def fold(self, use: Use) -> Use:
        """Returns a use with formed gradients added up by unit."""
        if self._units is None or not isinstance(use, GradientUse):
            return use
        return use.by_unit(self._units)

    def squared_norms(self, uses: Sequence[Use], negligible: float) -> Tensor:
        """Returns the squared norms of a parameter's folded uses, shape (units,)."""
        units = self._units
        if units is not None:
            uses = [use if isinstance(use, GradientUse) else use.by_unit(units) for use in uses]
        return squared_norms(uses, negligible=negligible)

    def add_weighted_sum(self, use: Use, decision: ClipDecision, group: int, total: Tensor) -> None:
        """Adds the weighted sum of a folded use to ``total``; what is not finite adds zero."""
        factors, finite = decision.factors[group], decision.finite
        if self._units is not None and not isinstance(use, GradientUse):
            factors, finite = factors[self._units.index], finite[self._units.index]
        kept = use if decision.everyone_is_finite else use.keep(finite)
        kept.add_weighted_sum(factors.to(total.dtype), total)
