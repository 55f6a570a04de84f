"""The result of one micro-batch, as engines return it to the training loop."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MicroBatchResult:
    """Losses and gradient norms of a micro-batch; private."""

    losses: Tensor
    """Per-example losses, shape (b,), detached."""
    norms: Tensor | None
    """Norms of the u privacy units' gradients before clipping, shape (u,), 0 for a unit that is not
    finite. None in ordinary training."""
