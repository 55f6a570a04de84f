"""Book-keeping: one backward pass, then one weighted contraction per parameter.

The backward pass forms no weight gradient; the layer rules keep each layer's input and output
gradient instead. From those come the per-example norms, and, once the clip factors are known,
the same matrix product an ordinary backward would have done, with weights (Bu et al. 2023).
Where per-example gradients cost less than what they replace (``costs``), they are formed in the
backward pass at once, and the contraction is a weighted sum of them.
"""

from functools import partial

import torch
from torch import Tensor

from dpft.privacy.clipping.costs import keeping_is_cheaper
from dpft.privacy.clipping.engines.base import ClipDecision, ClippedBatch
from dpft.privacy.clipping.engines.recording import RecordingEngine
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.uses import GradientUse, OuterUse, Use, merge_uses
from dpft.privacy.clipping.wide import widen


class BookKeepingEngine(RecordingEngine):
    """Exact clipped sums at about the cost of ordinary training."""

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        uses = self._backward(losses)
        with torch.no_grad():
            rows = Rows(losses, units)
            squares = self.new_squares(len(rows.finite))
            for name, kept in uses.items():
                kept[:] = [rows.fold(use) for use in kept]
                squares[self.groups[name]] += rows.squared_norms(kept, self.negligible)
            decision = self.decide_clipping(squares, rows.finite)
            self._contract(uses, rows, decision)
        return decision.clipped_batch()

    def _backward(self, losses: Tensor) -> dict[str, list[Use]]:
        """Returns every trainable parameter's uses by its name, merged by kind."""
        self._memory = self.tuning.memory_mb * 2**20
        try:
            self.backward(losses, self._keep)
        finally:
            uses = self.recorder.take()
        return {n: [widen(use) for use in merge_uses(kept)] for n, kept in uses.items()}

    def _keep(self, name: str, use: Use) -> None:
        """Keeps a use, as per-example gradients where that is cheaper."""
        if isinstance(use, OuterUse) and name not in self.shared:
            shape = use.shape
            if keeping_is_cheaper(shape, self._memory):
                if shape.instantiated_bytes > shape.factored_bytes:
                    self._memory -= shape.instantiated_bytes
                use = GradientUse(use.instantiate())
        self.recorder.keep(name, use)

    def _contract(self, uses: dict[str, list[Use]], rows: Rows, decision: ClipDecision) -> None:
        """Adds the weighted sums to the gradients; each use is freed once contracted."""
        parameters = self.trainable.now()
        while uses:
            name, kept = uses.popitem()
            parameter = parameters[name]
            add = partial(_add_weighted_sums, kept, rows, decision, self.groups[name])
            parameter.grad = self.sums.add(name, parameter, parameter.grad, add)


def _add_weighted_sums(
    uses: list[Use], rows: Rows, decision: ClipDecision, group: int, total: Tensor
) -> None:
    while uses:
        rows.add_weighted_sum(uses.pop(), decision, group, total)
