"""The oracle: one batched forward, then one backward pass for each example.

Slow and beyond doubt; every other engine is tested against it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engines.base import ClipDecision, ClippedBatch, Engine, LossFunction
from dpft.privacy.clipping.engines.checker import Checker
from dpft.privacy.clipping.factors import ClippingStyle
from dpft.privacy.clipping.separation.graph import ordinary_gradients

BLOCK = 2**20


class LoopEngine(Engine):
    """Clipped sums from explicit per-example gradients, one example in memory at a time.

    That examples do not mix is checked here as in every engine; how their gradients are told
    apart needs no proof. A non-finite example alone in its batch contributes zero, as in every
    engine; among others it is refused, since backward through the shared graph mixes it into them.
    """

    def __init__(
        self,
        model: nn.Module,
        style: ClippingStyle,
        *,
        groups: Mapping[str, int] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """See ``Engine``."""
        super().__init__(model, style, groups=groups, tuning=tuning)
        self._checker = Checker(model, self.trainable)

    def install(self) -> None:
        """Watches the model's calls; its layers stay as they are."""
        self._checker.install()

    def remove(self) -> None:
        """Leaves the model alone."""
        self._checker.remove()

    def compute(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """See ``Engine.compute``."""
        return self._checker.losses(compute_losses, units)

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        if units is None or len(units) != len(losses):
            groups = list(losses)
        else:
            groups = [losses[units == unit].sum() for unit in torch.unique(units)]
        norms, non_finite = [], 0
        for number, loss in enumerate(groups):
            decision = self._add_clipped(loss, last=number == len(groups) - 1)
            if decision.non_finite and len(groups) > 1:
                raise RunError(
                    "`engine='loop'` cannot keep a non-finite example from spoiling the others of "
                    "its micro-batch (0 * nan is nan); set `b=1`, one example at a time, or "
                    "another engine."
                )
            norms.append(decision.norms)
            non_finite += decision.non_finite
        self.sums.flush()
        return ClippedBatch(norms=torch.cat(norms), non_finite=non_finite)

    def _add_clipped(self, loss: Tensor, *, last: bool) -> ClipDecision:
        """Adds one clipped gradient, unless it is not finite; returns what its norm decided."""
        scale = torch.full_like(loss, self.tuning.scale)
        parameters = self.trainable.now()
        used = ordinary_gradients(loss, parameters, weights=scale, retain_graph=not last)
        squares = self.new_squares(1)
        for name, gradient in used.items():
            squares[self.groups[name]] += squared_norm(gradient)
        decision = self.decide_clipping(squares, loss.detach().isfinite()[None])
        if decision.everyone_is_finite:
            for name, gradient in used.items():
                parameter = parameters[name]
                factor = decision.factors[self.groups[name], 0].to(parameter.dtype)
                parameter.grad = self.sums.add(name, parameter.grad, gradient * factor)
        return decision


def squared_norm(gradient: Tensor) -> Tensor:
    """Returns the squared norm of one gradient, in float64, block by block to save memory."""
    blocks = gradient.reshape(-1).split(BLOCK)
    return torch.stack([block.double().square().sum() for block in blocks]).sum()
