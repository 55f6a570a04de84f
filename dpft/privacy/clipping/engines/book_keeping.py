"""Book-keeping: one backward pass, then one weighted contraction per parameter.

The backward pass forms no weight gradient; the layer rules keep each layer's input and output
gradient instead. From those come the per-example norms, and, once the clip factors are known,
the same matrix product an ordinary backward would have done, with weights (Bu et al. 2023).
Where per-example gradients cost less than what they replace (``costs``), they are formed in the
backward pass at once, and the contraction is a weighted sum of them.
"""

import torch
from torch import Tensor

from dpft.privacy.clipping.costs import keeping_is_cheaper
from dpft.privacy.clipping.engines.base import ClippedBatch
from dpft.privacy.clipping.engines.norm_collector import CollectedNorms, NormCollector
from dpft.privacy.clipping.engines.recording import RecordingEngine
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.head_use import HeadUse
from dpft.privacy.clipping.norms import CarefulSquares
from dpft.privacy.clipping.patch_use import PatchUse
from dpft.privacy.clipping.uses import GradientUse, OuterUse, Use, merge_uses
from dpft.privacy.clipping.wide import certain, widen_at_a_glance


class BookKeepingEngine(RecordingEngine):
    """Exact clipped sums at about the cost of ordinary training."""

    def install(self) -> None:
        """See ``RecordingEngine.install``."""
        self.recorder.room = self.tuning.memory_mb * 2**20
        super().install()

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        uses = self._backward(losses)
        with torch.no_grad():
            rows = Rows(losses, units)
            collected = self._collected(uses, rows)

            def look_again(names: set[str]) -> dict[str, CarefulSquares]:
                for name in names:
                    uses[name][:] = [certain(use) for use in uses[name]]
                return {name: rows.squared_norms(uses[name], self.negligible) for name in names}

            decision = self.decide(collected, rows, look_again)
            self.add_weighted_sums(uses, rows, decision)
            self.add_small_gradients(collected.matrices, decision)
            self.sums.flush()
        return decision.clipped_batch()

    def _collected(self, uses: dict[str, list[Use]], rows: Rows) -> CollectedNorms:
        """Returns the norms of all uses, which are folded by unit; small gradients move there."""
        collector = NormCollector(self.groups, rows, uses_stay=True)
        for name, kept in uses.items():
            kept[:] = [rows.fold(use) for use in kept]
            collector.add(name, kept)
        collected = collector.result(self.negligible)
        for matrix in collected.matrices:
            for name in matrix.names:
                del uses[name]
        return collected

    def _backward(self, losses: Tensor) -> dict[str, list[Use]]:
        """Returns every trainable parameter's uses by its name, merged by kind."""
        self._memory = self.tuning.memory_mb * 2**20
        try:
            self.backward(losses, self._keep)
        finally:
            uses = self.recorder.take()
        return {n: [widen_at_a_glance(use) for use in merge_uses(kept)] for n, kept in uses.items()}

    def _keep(self, name: str, use: Use) -> None:
        """Keeps a use, as per-example gradients where that is cheaper."""
        if isinstance(use, HeadUse):
            self._memory -= use.kept_bytes
        if isinstance(use, OuterUse | PatchUse) and name not in self.shared:
            shape = use.shape
            if keeping_is_cheaper(shape, self._memory):
                if shape.instantiated_bytes > shape.factored_bytes:
                    self._memory -= shape.instantiated_bytes
                use = GradientUse(use.instantiate())
        self.recorder.keep(name, use)
