"""The rows of a batch by privacy unit: norms of units, and sums weighted by units' factors."""

from collections.abc import Sequence

from torch import Tensor

from dpft.privacy.clipping.engines.base import ClipDecision
from dpft.privacy.clipping.norms import CarefulSquares, formed_gradient, squared_norms
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
        self.finite = finite if self._units is None else self._units.all_finite(finite)
        """Which units have finite losses only, shape (units,)."""

    def fold(self, use: Use) -> Use:
        """Returns a use with formed gradients added up by unit."""
        if self._units is None or not isinstance(use, GradientUse):
            return use
        return use.by_unit(self._units)

    def by_unit(self, uses: Sequence[Use]) -> Sequence[Use]:
        """Returns folded uses with one row for each unit."""
        units = self._units
        if units is None:
            return uses
        return [use if isinstance(use, GradientUse) else use.by_unit(units) for use in uses]

    def squared_norms(self, uses: Sequence[Use], negligible: float) -> CarefulSquares:
        """Returns the squared norms of a parameter's folded uses, shape (units,)."""
        return squared_norms(self.by_unit(uses), negligible=negligible)

    def weighted_sum(
        self, name: str, uses: list[Use], decision: ClipDecision, group: int
    ) -> Tensor:
        """Returns the weighted sum of a parameter's folded uses; what is not finite adds zero.

        Args:
            name: The parameter's name.
            uses: At most one of each kind; each is let go once it is added.
            decision: What decides the weights.
            group: The parameter's group.
        """
        formed = decision.formed.get(name)
        every = list(uses) if formed is not None else []
        total = None
        while uses:
            use, factors = self._weighted(uses.pop(0), decision, group, formed)
            if total is None:
                total = use.weighted_sum(factors)
            else:
                use.add_weighted_sum(factors.to(total.dtype), total)
        assert total is not None
        if formed is not None:
            self._add_formed(every, decision.factors[group], formed & decision.finite, total)
        return total

    def add_weighted_sum(self, use: Use, decision: ClipDecision, group: int, total: Tensor) -> None:
        """Adds the weighted sum of a folded use to ``total``; what is not finite adds zero."""
        kept, factors = self._weighted(use, decision, group, None)
        kept.add_weighted_sum(factors.to(total.dtype), total)

    def _weighted(
        self, use: Use, decision: ClipDecision, group: int, without: Tensor | None
    ) -> tuple[Use, Tensor]:
        """Returns a use of the examples that take part, and their factors, in its own dtype."""
        by_row = self._units is not None and not isinstance(use, GradientUse)
        factors = decision.factors_of(group, use.dtype)
        finite = None if decision.everyone_is_finite else decision.finite
        if without is not None:
            finite = decision.finite & ~without
        if by_row and self._units is not None:
            factors = factors[self._units.index]
            finite = None if finite is None else finite[self._units.index]
        return use if finite is None else use.keep(finite), factors

    def _add_formed(
        self, uses: Sequence[Use], factors: Tensor, formed: Tensor, total: Tensor
    ) -> None:
        """Adds the gradients that are formed by themselves, one after the other."""
        whole = self.by_unit(uses)
        for example in formed.nonzero()[:, 0]:
            for rows, part in formed_gradient(whole, example):
                part = part * factors[example].double()
                total[rows].add_(part.to(total.dtype).view_as(total[rows]))
