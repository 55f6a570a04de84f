"""Instantiate: per-example gradients, formed in the one backward pass, and nothing else held.

For small trainable sets (adapters, biases, norm layers), where a gradient for each example takes
less memory than the activations it is made of (Bu et al. 2022, section 3).
"""

from functools import partial

import torch
from torch import Tensor

from dpft.privacy.clipping.engines.base import ClippedBatch
from dpft.privacy.clipping.engines.recording import RecordingEngine
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.uses import GradientUse, Use


class InstantiateEngine(RecordingEngine):
    """Exact clipped sums from explicit per-example gradients, all examples at once."""

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        rows = Rows(losses, units)
        gradients = self._gradients(losses, rows)
        with torch.no_grad():
            squares = self.new_squares(len(rows.finite))
            for name, gradient in gradients.items():
                squares[self.groups[name]] += rows.squared_norms([gradient], self.negligible)
            decision = self.decide_clipping(squares, rows.finite)
            parameters = self.trainable.now()
            for name, gradient in gradients.items():
                parameter = parameters[name]
                add = partial(rows.add_weighted_sum, gradient, decision, self.groups[name])
                parameter.grad = self.sums.add(name, parameter, parameter.grad, add)
        return decision.clipped_batch()

    def _gradients(self, losses: Tensor, rows: Rows) -> dict[str, GradientUse]:
        """Returns every trainable parameter's gradients by its name, one for each unit."""
        gradients: dict[str, Tensor] = {}

        def receive(name: str, use: Use) -> None:
            values = rows.fold(GradientUse(use.instantiate())).instantiate()
            if name in gradients:
                values = gradients[name] + values
            gradients[name] = values

        self.backward(losses, receive)
        return {name: GradientUse(values) for name, values in gradients.items()}
