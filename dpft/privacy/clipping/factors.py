"""Clipping styles: from an example's gradient norm to the factor its gradient is scaled by.

Each style states its sensitivity, the most one unit can move the sum of scaled gradients, and
the noise is a multiple of exactly that number.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.errors import InputError

# A factor computed in floating point may exceed the true one by rounding; sixteen units in the
# last place cover the norm's own error (DESIGN section 5).
GUARD_EPS = 16

NORM_RANGE = (1e-10, 1e10)
"""Clipping norms whose squares, factors and noise float32 can hold."""


@dataclass(frozen=True, kw_only=True)
class ClippingStyle(ABC):
    """Turns per-example gradient norms into clip factors.

    Guarantees:
        ``norm * factor <= sensitivity`` for every norm in [0, inf).
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        least, most = NORM_RANGE
        if not least <= self.max_grad_norm <= most:
            raise InputError(
                f"privacy.max_grad_norm must be positive and finite, from {least:g} to {most:g}, "
                f"got {self.max_grad_norm}."
            )

    @property
    def sensitivity(self) -> float:
        """Most that one unit can move the clipped sum, in L2 norm."""
        return self.max_grad_norm

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """Returns the factor of each gradient, shape (b,), for ``norms`` of shape (b,)."""


@dataclass(frozen=True, kw_only=True)
class Flat(ClippingStyle):
    """Abadi et al. 2016: scale by ``min(1, max_grad_norm / norm)``."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``min(1, C / (norm * (1 + 16 eps)))``; 1 at norm 0."""
        guarded = norms * (1 + GUARD_EPS * torch.finfo(norms.dtype).eps)
        return torch.clamp(self.max_grad_norm / guarded, max=1.0)


STYLES: dict[str, type[ClippingStyle]] = {"flat": Flat}


def clipping_style(name: str, *, max_grad_norm: float) -> ClippingStyle:
    """Returns the style called ``name``.

    Raises:
        InputError: No such style, or ``max_grad_norm`` is not positive and finite.
    """
    if name not in STYLES:
        raise InputError(f"privacy.clipping must be one of {', '.join(STYLES)}, got {name!r}.")
    return STYLES[name](max_grad_norm=max_grad_norm)
