"""The options of a clipper in one value, so that training, checks and measurements clip alike."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from dpft.privacy.clipping.choices import Compilation, LossScale, Shards, Tuning
from dpft.privacy.clipping.clipper import PerExampleClipper
from dpft.privacy.clipping.costs import DEFAULT_MEMORY_MB
from dpft.privacy.clipping.engines import resolved_engine


@dataclass(frozen=True, kw_only=True)
class ClippingOptions:
    """Arguments of ``PerExampleClipper``, under the same names."""

    max_grad_norm: float
    clipping: str = "flat"
    engine: str = "auto"
    groups: Sequence[str] | None = None
    memory_mb: int = DEFAULT_MEMORY_MB
    loss_scale: LossScale = 1.0
    headroom: float = 0.0
    compilation: Compilation | None = None
    shards: Shards | None = None
    moved: Collection[str] = ()

    def make(self, model: nn.Module) -> PerExampleClipper:
        """Returns a clipper of the model's trainable parameters.

        Raises:
            InputError: As ``PerExampleClipper``.
        """
        return PerExampleClipper(model, **vars(self))

    def resolved(self, model: nn.Module) -> Self:
        """Returns the options with the engine that ``auto`` takes, named; nothing is logged."""
        tuning = Tuning(memory_mb=self.memory_mb, loss_scale=self.loss_scale)
        return replace(self, engine=resolved_engine(self.engine, model, tuning)[0])
