"""Small formed gradients, of biases and norm layers, side by side in a few matrices.

There are many of them, and each is so small that the operations on it cost more than their
arithmetic. Norms and sums are taken in float64, which holds every float32 square.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.squares import in_norm_dtype
from dpft.privacy.clipping.uses import sum_of_rows

SMALL_GRADIENT = 2**16
"""Numbers of a parameter up to which its gradients are put beside others."""
MATRIX = 2**20
"""Numbers of such a matrix (4 MB, and 8 MB in float64)."""


@dataclass(frozen=True)
class GradientMatrix:
    """The gradients of some parameters of one group, side by side.

    Attributes:
        names: The parameters' names.
        shapes: And their shapes.
        group: Their group.
        values: Shape (b, numbers of all of them).
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    group: int
    values: Tensor

    def squares(self) -> Tensor:
        """Returns the squared norms of all of them together, shape (b,), in float64."""
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64)
        return norms.square()

    def weighted_sums(self, factors: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        """Returns sum over i of ``factors[i] * gradient[i]`` of each parameter, by name.

        Args:
            factors: Shape (b,).
            finite: Which examples take part, shape (b,); None for all.
        """
        values = self.values
        if finite is not None:
            values = torch.where(finite.unsqueeze(1), values, 0.0)
        parts = sum_of_rows(factors, values).split([math.prod(shape) for shape in self.shapes])
        # Each in memory of its own: what is added to one must not pass for a change of another.
        parts = torch._foreach_mul(parts, 1.0)
        shaped = zip(self.names, parts, self.shapes, strict=True)
        return {n: part if len(shape) == 1 else part.view(shape) for n, part, shape in shaped}


class SmallGradients:
    """Puts small gradients side by side until a matrix is full."""

    def __init__(self, when_full: Callable[[GradientMatrix], None]) -> None:
        """Starts with none.

        Args:
            when_full: Takes each matrix.
        """
        self._when_full = when_full
        self._waiting: dict[tuple[int, torch.dtype], list[tuple[str, Tensor]]] = defaultdict(list)
        self._sizes: dict[tuple[int, torch.dtype], int] = defaultdict(int)

    def add(self, name: str, group: int, values: Tensor) -> None:
        """Takes a parameter's gradients, (b, *shape)."""
        values = in_norm_dtype(values)
        key = (group, values.dtype)
        self._waiting[key].append((name, values))
        self._sizes[key] += values.numel()
        if self._sizes[key] >= MATRIX:
            self._close(key)

    def close(self) -> None:
        """Hands over what waits for more."""
        for key in list(self._waiting):
            self._close(key)

    def _close(self, key: tuple[int, torch.dtype]) -> None:
        named = self._waiting.pop(key)
        self._sizes.pop(key)
        names, gradients = zip(*named, strict=True)
        shapes = tuple(gradient.shape[1:] for gradient in gradients)
        self._when_full(GradientMatrix(names, shapes, key[0], _side_by_side(gradients)))


def is_small(values: Tensor) -> bool:
    """Whether gradients (b, *shape) belong beside others."""
    return values.numel() <= SMALL_GRADIENT * len(values)


def _side_by_side(gradients: Sequence[Tensor]) -> Tensor:
    flat = [g if g.dim() == 2 else g.reshape(len(g), -1) for g in gradients]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)
