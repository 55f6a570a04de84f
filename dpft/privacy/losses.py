"""The losses that engines take: a function of the model and a batch, given once.

A batch is a pytree of tensors whose leading dimension is b, so that an engine can compute the
losses of a subset of its rows. Data without rows, such as class weights, belong to the function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

LossesOf = Callable[[nn.Module, Any], Tensor]
"""Returns per-example losses, shape (b,), in nats. The engine that calls it applies autocast."""


@dataclass(frozen=True)
class MicroBatchResult:
    """Losses and gradient norms of a micro-batch; private."""

    losses: Tensor
    """Per-example losses, shape (b,), detached."""
    norms: Tensor | None
    """Norms of the u privacy units' gradients before clipping, shape (u,), 0 for a unit that is not
    finite. None in ordinary training."""
