"""Privacy units: whose gradients are added up before the norm, where a unit has several rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.devices import add_rows, moved


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

    def all_finite(self, finite: Tensor) -> Tensor:
        """Returns whether all losses of each unit are finite, shape (count,).

        Args:
            finite: Of each row's loss, or of each unit's.
        """
        if len(finite) != len(self.index):
            return finite
        return self.sum((~finite).int()) == 0

    def sum(self, rows: Tensor) -> Tensor:
        """Returns (count, …) from (b, …): each unit's rows added up."""
        return add_rows(rows.new_zeros(self.count, *rows.shape[1:]), self.index, rows)


@dataclass(frozen=True)
class Shares:
    """The unit of each loss and of each row of a batch, numbered from 0.

    Attributes:
        losses: Shape (losses,).
        rows: Shape (rows,).
        count: Number of units.
    """

    losses: Tensor
    rows: Tensor
    count: int

    @classmethod
    def of(cls, units: Tensor | None, losses: Tensor) -> "Shares":
        """Returns the shares of losses that are one of each row, or one of each unit.

        Args:
            units: Unit of each row, in any numbers; None where each row is its own.
            losses: In the order of the rows, or of ``torch.unique(units)``.
        """
        if units is None:
            each = torch.arange(len(losses), device=losses.device)
            return cls(each, each, len(losses))
        labels, index = torch.unique(units.to(losses.device), return_inverse=True)
        by_row = len(losses) == len(units)
        each = torch.arange(len(labels), device=losses.device)
        return cls(index if by_row else each, index, len(labels))

    def all_of_unit(self, mask: Tensor) -> Tensor:
        """Returns whether a mask over the losses is True of all losses of each unit, (units,)."""
        lacking = torch.zeros(self.count, dtype=torch.int64, device=mask.device)
        return lacking.index_add_(0, self.losses, (~mask).long()) == 0
