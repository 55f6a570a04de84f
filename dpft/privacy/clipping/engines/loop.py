"""The oracle: one batched forward, then one backward pass for each example.

Slow and beyond doubt; every other engine is tested against it.
"""

import torch
from torch import Tensor

from dpft.errors import RunError
from dpft.privacy.clipping.engines.base import ClippedBatch, Engine, gradient_buffer


class LoopEngine(Engine):
    """Clipped sums from explicit per-example gradients, one example in memory at a time.

    A non-finite example alone in its batch contributes zero, as in every engine; among others it
    is refused, since backward through the shared graph mixes it into them.
    """

    def install(self) -> None:
        """Leaves the model alone."""

    def remove(self) -> None:
        """Leaves the model alone."""

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        if units is None:
            groups = list(losses)
        else:
            groups = [losses[units == unit].sum() for unit in torch.unique(units)]
        norms, non_finite = [], 0
        for number, loss in enumerate(groups):
            norm, finite = self._add_clipped(loss, last=number == len(groups) - 1)
            if not finite and len(groups) > 1:
                raise RunError(
                    "privacy.engine=loop cannot keep a non-finite example from spoiling the others "
                    "of its micro-batch (0 * nan is nan); set train.micro_batch_size=1 or another "
                    "engine."
                )
            norms.append(norm)
            non_finite += not finite
        return ClippedBatch(norms=torch.stack(norms), non_finite=non_finite)

    def _add_clipped(self, loss: Tensor, *, last: bool) -> tuple[Tensor, bool]:
        """Adds one clipped gradient; returns its norm before clipping and whether it was finite."""
        parameters = list(self.names)
        gradients = torch.autograd.grad(loss, parameters, retain_graph=not last, allow_unused=True)
        used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        zero = loss.detach().new_zeros((), dtype=parameters[0].dtype)
        norm = torch.stack([zero, *(g.square().sum() for _, g in used)]).sum().sqrt()
        if not (loss.isfinite() and norm.isfinite()):
            return zero, False
        factor = self.style.factors(norm[None])[0]
        for parameter, gradient in used:
            gradient_buffer(parameter).add_(gradient * factor)
        return norm, True
