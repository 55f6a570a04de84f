"""Privacy units: whose gradients are added up before the norm, where a unit has several rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.blocks import moved


@dataclass(frozen=True)
class Units:
    """Which rows of a batch belong to which privacy unit.

    Attributes:
        index: Unit of each row, 0 to count - 1, shape (b,).
        position: Place of each row among its unit's rows, shape (b,).
        count: Number of units.
        longest: Most rows that a unit has.
    """

    index: Tensor
    position: Tensor
    count: int
    longest: int

    @classmethod
    def of(cls, units: Tensor) -> "Units":
        """Returns the grouping of ``units``, shape (b,), in the order of ``torch.unique``."""
        # On the host, so that a device is looked at once.
        labels, index = torch.unique(units.cpu(), return_inverse=True)
        same_before = torch.tril(index[:, None] == index[None, :], diagonal=-1)
        position = same_before.sum(1)
        longest = int(position.max()) + 1
        index, position = (moved(each, units.device) for each in (index, position))
        return cls(index=index, position=position, count=len(labels), longest=longest)

    def concatenate(self, rows: Tensor) -> Tensor:
        """Returns (count, longest * t, …) from (b, t, …): a unit's rows end to end, zero padded."""
        grouped = rows.new_zeros(self.count, self.longest, *rows.shape[1:])
        grouped[self.index, self.position] = rows
        return grouped.flatten(1, 2)

    def sum(self, rows: Tensor) -> Tensor:
        """Returns (count, …) from (b, …): each unit's rows added up."""
        return rows.new_zeros(self.count, *rows.shape[1:]).index_add_(0, self.index, rows)
