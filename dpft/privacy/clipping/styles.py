"""Clipping styles: functions from bounds of gradient norms to clip factors.

Each style states its sensitivity, which is the maximum change of a step's clipped sum by one
privacy unit. The noise is a multiple of exactly this number.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.errors import InputError
from dpft.privacy.clipping.options import check_max_grad_norm, check_style_name

STABILITY = 0.01
"""Constant of automatic clipping (Bu et al. 2022b, eq. 4.1), in units of the gradient norm."""
LEAST_NORM = 1e-10
"""Norm below which AUTO-V treats a gradient as zero."""
MOST_HEADROOM = 0.5
"""Largest share of the clipping norm that can be reserved for rounding."""
ROUNDED_DOWN = 1 - 2.0**-40
"""Clip factors are multiplied by this number, which covers the rounding of their float64
formula."""
FACTOR_RANGE = (2.0**-64, 1e12)
"""Range of clip factors for float32 products. A unit with a smaller factor adds nothing
(norm-bound.md, line 17). A larger factor is reduced, because its product with a large input could
overflow."""


@dataclass(frozen=True, kw_only=True)
class ClippingStyle(ABC):
    """Base of clipping styles, which compute clip factors from upper bounds of gradient norms.

    Guarantees:
        For bounds of every group in [0, inf), the root of the sum over groups of
        ``(bound * factor)^2`` is at most ``(1 - headroom) * max_grad_norm``.
    """

    max_grad_norm: float
    headroom: float = 0.0
    """Share of the clipping norm that is reserved for the rounding of a step's sum (``sums``)."""
    groups: int = 1
    """Number of groups that partition the trainable parameters; each group has its own norm."""

    def __post_init__(self) -> None:
        check_max_grad_norm(self.max_grad_norm)
        if not 0 <= self.headroom <= MOST_HEADROOM:
            raise InputError(
                f"`headroom` must be from 0 to {MOST_HEADROOM}, got {self.headroom}. Add fewer "
                "examples per step, because float32 sums of so many are too imprecise.",
                key="headroom",
                value=self.headroom,
            )

    @property
    def limit(self) -> float:
        """Maximum norm of a unit's scaled gradient, over all groups."""
        return self.max_grad_norm * (1 - self.headroom)

    @property
    def sensitivity(self) -> float:
        """Maximum change of a step's clipped sum by one unit, in L2 norm over all groups."""
        return self.max_grad_norm

    def factors(self, bounds: Tensor) -> Tensor:
        """Return clip factors.

        Args:
            bounds: Upper bounds of gradient norms, shape (groups, u), float64.

        Returns:
            Shape (groups, u), float64; 0 for a bound that is not finite.
        """
        least, most = FACTOR_RANGE
        factors = self._factors(bounds).clamp(max=most) * ROUNDED_DOWN
        # An infinite bound gives a factor of 0. NaN gives NaN, for which `>=` below is false.
        return torch.where(factors >= least, factors, 0.0)

    @abstractmethod
    def _factors(self, bounds: Tensor) -> Tensor:
        """Return the factors by the formula of the style, shape (groups, u)."""


@dataclass(frozen=True, kw_only=True)
class Flat(ClippingStyle):
    """Flat clipping (Abadi et al. 2016): scale by ``min(1, C / norm)``."""

    def _factors(self, bounds: Tensor) -> Tensor:
        return (self.limit / bounds).clamp(max=1.0)


@dataclass(frozen=True, kw_only=True)
class Automatic(ClippingStyle):
    """AUTO-S (Bu et al. 2022b): scale by ``C / (norm + 0.01)``."""

    def _factors(self, bounds: Tensor) -> Tensor:
        return self.limit / (bounds + STABILITY)


@dataclass(frozen=True, kw_only=True)
class AutomaticV(ClippingStyle):
    """AUTO-V (Bu et al. 2022b): scale by ``C / norm``; a norm below 1e-10 counts as zero."""

    def _factors(self, bounds: Tensor) -> Tensor:
        return torch.where(bounds >= LEAST_NORM, self.limit / bounds, 0.0)


@dataclass(frozen=True, kw_only=True)
class PerLayer(ClippingStyle):
    """Flat clipping of each of K groups separately, at ``C / sqrt(K)``.

    The groups partition the parameters, so the squares of K bounds ``C / sqrt(K)`` sum to C^2.
    """

    def _factors(self, bounds: Tensor) -> Tensor:
        return (self.limit / math.sqrt(self.groups) / bounds).clamp(max=1.0)


STYLES: dict[str, type[ClippingStyle]] = {
    "flat": Flat,
    "automatic": Automatic,
    "automatic_v": AutomaticV,
    "per_layer": PerLayer,
}


def clipping_style(
    name: str, *, max_grad_norm: float, groups: int = 1, headroom: float = 0.0
) -> ClippingStyle:
    """Return the style with the given name; only ``per_layer`` uses ``groups``.

    Raises:
        InputError: The name is unknown, or ``max_grad_norm`` or ``headroom`` is out of range.
    """
    check_style_name(name)
    count = groups if STYLES[name] is PerLayer else 1
    return STYLES[name](max_grad_norm=max_grad_norm, groups=count, headroom=headroom)
