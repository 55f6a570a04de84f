"""Clipping styles: from gradient norms to the factors gradients are scaled by.

Each style states its sensitivity, the most one unit can move the sum of scaled gradients, and
the noise is a multiple of exactly that number.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.errors import InputError
from dpft.privacy.clipping.choices import check_max_grad_norm, check_style_name

# A factor computed in floating point may exceed the true one by rounding; sixteen units in the
# last place cover the norm's own error (docs/design.md, the clipper).
GUARD_EPS = 16
STABILITY = 0.01
"""Constant of automatic clipping (Bu et al. 2022b, eq. 4.1), in units of the gradient norm."""

MOST_HEADROOM = 0.5
"""Largest share of the clipping norm that may be left for rounding."""


@dataclass(frozen=True, kw_only=True)
class ClippingStyle(ABC):
    """Turns per-example gradient norms into clip factors.

    Guarantees:
        For norms of every group in [0, inf), the root of the summed squares of ``norm * factor``
        over the groups is at most ``bound``, so that with the rounding of a step's sum one unit
        moves it by at most ``sensitivity``.
    """

    max_grad_norm: float
    headroom: float = 0.0
    """Share of the norm that factors leave for the rounding of the sum (``sums``)."""
    groups: int = 1
    """Groups that partition the trainable parameters; each has a norm and a factor of its own."""

    def __post_init__(self) -> None:
        check_max_grad_norm(self.max_grad_norm)
        if not 0 <= self.headroom <= MOST_HEADROOM:
            raise InputError(
                f"`headroom` must be from 0 to {MOST_HEADROOM}, got {self.headroom}; add up fewer "
                "examples in a step, whose float32 sums round too coarsely."
            )

    @property
    def bound(self) -> float:
        """Norm that gradients are scaled to: what the headroom leaves of ``max_grad_norm``."""
        return self.max_grad_norm * (1 - self.headroom)

    @property
    def sensitivity(self) -> float:
        """Most that one unit can move the clipped sum, in L2 norm over all groups together."""
        return self.max_grad_norm

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """Returns the factor of each gradient, of the shape of ``norms``, (…, b)."""

    @abstractmethod
    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns a norm such that an error far below it moves no scaled gradient's norm."""


@dataclass(frozen=True, kw_only=True)
class Flat(ClippingStyle):
    """Abadi et al. 2016: scale by ``min(1, C / norm)``."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``min(1, C / (norm * (1 + 16 eps)))``; 1 at norm 0."""
        return torch.clamp(self.bound / _guarded(norms), max=1.0)

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns C: below it nothing is scaled."""
        return self.max_grad_norm


@dataclass(frozen=True, kw_only=True)
class Automatic(ClippingStyle):
    """AUTO-S (Bu et al. 2022b): scale by ``C / (norm + 0.01)``, so that every example counts."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``C / (norm * (1 + 16 eps) + 0.01)``."""
        return self.bound / (_guarded(norms) + STABILITY)

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns 0.01: below it all are scaled nearly alike."""
        return STABILITY


@dataclass(frozen=True, kw_only=True)
class AutomaticV(ClippingStyle):
    """AUTO-V (Bu et al. 2022b): scale by ``C / norm``, so that every gradient has norm C."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``C / (norm * (1 + 16 eps))``; 0 at norm 0, and where squares underflow.

        Below 1e-10 (float32) entries whose squares are lost, each below 1e-19, could hold a
        share of the norm that counts, in a model of 1e12 parameters.
        """
        floor = self.least_norm(norms.dtype)
        scaled = self.bound / _guarded(norms).clamp(min=floor)
        return torch.where(norms >= floor, scaled, torch.zeros_like(scaled))

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns 1e-10 (float32), below which a gradient is taken for zero."""
        floor: float = 1e9 * torch.finfo(dtype).tiny ** 0.5
        return floor


@dataclass(frozen=True, kw_only=True)
class PerLayer(ClippingStyle):
    """Flat clipping of each of K groups by itself, at ``C / sqrt(K)``.

    The groups partition the parameters, so the squares of K bounds ``C / sqrt(K)`` add up to C.
    """

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``min(1, C / sqrt(K) / (norm * (1 + 16 eps)))``, shape (K, b) like ``norms``."""
        bound = self.bound / math.sqrt(self.groups)
        return torch.clamp(bound / _guarded(norms), max=1.0)

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns ``C / sqrt(K)``: below it nothing is scaled."""
        return self.max_grad_norm / math.sqrt(self.groups)


STYLES: dict[str, type[ClippingStyle]] = {
    "flat": Flat,
    "automatic": Automatic,
    "automatic_v": AutomaticV,
    "per_layer": PerLayer,
}


def clipping_style(
    name: str, *, max_grad_norm: float, groups: int = 1, headroom: float = 0.0
) -> ClippingStyle:
    """Returns the style called ``name``, for ``groups`` groups where the style has groups.

    Raises:
        InputError: No such style, or ``max_grad_norm`` is not positive and finite.
    """
    check_style_name(name)
    count = groups if STYLES[name] is PerLayer else 1
    return STYLES[name](max_grad_norm=max_grad_norm, groups=count, headroom=headroom)


def in_range(factors: Tensor) -> Tensor:
    """Returns factors that float32 products with gradients can bear; none is larger than it was.

    A factor below the least normal number has lost digits and may be twice what it should be: it
    becomes 0. One above 1e12 (float32) could lift an input of 3e26 (``squares.LONGEST``) out of
    range, and a sum with it: it becomes 1e12.
    """
    info = torch.finfo(factors.dtype)
    return torch.where(factors < info.tiny, 0.0, factors.clamp(max=info.max / 3.4e26))


def _guarded(norms: Tensor) -> Tensor:
    return norms * (1 + GUARD_EPS * torch.finfo(norms.dtype).eps)
