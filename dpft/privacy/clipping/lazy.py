"""A use whose output gradient is computed when it is asked for, and never held whole."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpft.privacy.clipping.squares import Squares, norm_dtype

if TYPE_CHECKING:
    from dpft.privacy.clipping.units import Units
    from dpft.privacy.clipping.uses import OuterUse


class LazyUse(ABC):
    """An ``OuterUse`` of which ``left`` is not there; what needs it whole has it made."""

    right: Tensor
    """Shape (b, t, columns)."""

    @abstractmethod
    def outer(self, examples: Tensor | None = None) -> "OuterUse":
        """Returns the use of some examples, or of all, with its output gradient."""

    @abstractmethod
    def squares(self) -> Squares:
        """Returns the squared gradient norms."""

    @abstractmethod
    def cross_term(self, ids: Tensor, inner: Callable[[Tensor, Tensor], Squares]) -> Squares:
        """As ``OuterUse.cross_term``."""

    @abstractmethod
    def double(self, examples: Tensor) -> "OuterUse":
        """Returns the use of some examples in float64."""

    @abstractmethod
    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""

    @abstractmethod
    def keep(self, mask: Tensor) -> "LazyUse":
        """Returns the use without the examples where ``mask`` is False."""

    @property
    @abstractmethod
    def parameter_shape(self) -> tuple[int, ...]:
        """The weight's shape."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of norms and sums."""
        return norm_dtype(self.right)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, shape (rows, columns)."""
        total = torch.zeros(self.parameter_shape, dtype=self.dtype, device=self.right.device)
        self.add_weighted_sum(factors, total)
        return total

    def norm_bound(self) -> Tensor:
        """As ``OuterUse.norm_bound``."""
        return self.outer().norm_bound()

    def extent(self) -> Tensor:
        """As ``OuterUse.extent``."""
        return self.outer().extent()

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, rows, columns)."""
        return self.outer().instantiate()

    def of_rows(self, start: int, stop: int) -> "OuterUse":
        """Returns the use of some rows of the weight alone."""
        return self.outer().of_rows(start, stop)

    def by_unit(self, units: "Units") -> "OuterUse":
        """Returns the use whose example j is all rows of unit j, end to end along t."""
        return self.outer().by_unit(units)
