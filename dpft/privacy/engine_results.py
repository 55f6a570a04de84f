"""Values that engines return to the training loop: micro-batch results and secret state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class MicroBatchResult:
    """Losses and gradient norms of a micro-batch; private."""

    losses: Tensor
    """Per-example losses, shape (b,), detached."""
    norms: Tensor | None
    """Norms of the u privacy units' gradients before clipping, shape (u,); 0 for a unit that is not
    finite. None in non-private training."""


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """Secret state from which the next step draws, for a checkpoint in ``private/``."""

    generators: Mapping[str, Any]
    """Keys, or the states of generators, ready for JSON."""
    noise_history: Mapping[str, Tensor] | None = None
    """This rank's part of the earlier noise with which later noise is correlated. None if the noise
    of different steps is independent."""
