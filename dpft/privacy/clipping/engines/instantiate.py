"""Instantiate: per-example gradients, formed in the one backward pass, and nothing else held.

For small trainable sets (adapters, biases, norm layers), where a gradient for each example takes
less memory than the activations it is made of (Bu et al. 2022, section 3).
"""

import torch
from torch import Tensor

from dpft.privacy.clipping.engines.base import ClippedBatch
from dpft.privacy.clipping.engines.norm_collector import NormCollector
from dpft.privacy.clipping.engines.recording import RecordingEngine
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.norms import CarefulSquares
from dpft.privacy.clipping.uses import GradientUse, Use


class InstantiateEngine(RecordingEngine):
    """Exact clipped sums from explicit per-example gradients, all examples at once."""

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        rows = Rows(losses, units)
        with torch.no_grad():
            gradients = self._gradients(losses, rows)
            collector = NormCollector(self.groups, rows)
            for name, gradient in gradients.items():
                collector.add(name, gradient)
            collected = collector.result(self.negligible)
            for matrix in collected.matrices:
                for name in matrix.names:
                    del gradients[name]

            def look_again(names: set[str]) -> dict[str, CarefulSquares]:
                return {n: rows.squared_norms(gradients[n], self.negligible) for n in names}

            decision = self.decide(collected, rows, look_again)
            self.add_weighted_sums(gradients, rows, decision)
            self.add_small_gradients(collected.matrices, decision)
            self.sums.flush()
        return decision.clipped_batch()

    def _gradients(self, losses: Tensor, rows: Rows) -> dict[str, list[Use]]:
        """Returns every trainable parameter's gradients by its name, one for each unit."""
        gradients: dict[str, list[Use]] = {}

        def receive(name: str, use: Use) -> None:
            gradient = rows.fold(GradientUse(use.instantiate()))
            if name in gradients:
                gradient = GradientUse(gradients[name][0].instantiate() + gradient.instantiate())
            gradients[name] = [gradient]

        self.backward(losses, receive)
        return gradients
