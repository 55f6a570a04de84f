"""What backward leaves behind for a parameter, and the two sums that clipping needs of it.

A use of a parameter is what one call of a layer contributes to its per-example gradients, kept
in factored form. Several uses of one parameter (a tied head, a layer called twice) add up before
the norm is taken, so their squared norms get cross terms. Notation: b examples, t positions,
gradient of example i in brackets [i].

Sources: ghost norms, Li et al. 2022 section 4; book-keeping, Bu et al. 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Resolution:
    """How far terms may cancel before a dtype's sums of products stop being good enough.

    Attributes:
        share: Share of its squared reach under which a squared norm is taken again, without
            subtracting large numbers from each other.
        floor: Least norm, over its reach, that a gradient is clipped by. The clipped sum is
            formed in the model's own dtype, so below it a factor would magnify rounding.
    """

    share: float
    floor: float


# Measured on gradients built to cancel, 2 to 1024 positions: above these shares the norm, and
# above these floors the clipped gradient, is good to 1e-5 (float32) and 1e-10 (float64). A
# hundred positions of independent gradients have a share of 1e-2.
_RESOLUTION = {
    torch.float32: _Resolution(share=5e-3, floor=1e-3),
    torch.float64: _Resolution(share=1e-6, floor=1e-7),
}


@dataclass(frozen=True)
class OuterUse:
    """Gradient [i] = sum over t of ``left[i, t] right[i, t]^T``: a matrix product's weight.

    Attributes:
        left: Shape (b, t, rows); rows and columns are those of the weight.
        right: Shape (b, t, columns).
    """

    left: Tensor
    right: Tensor

    def squared_norms(self) -> Tensor:
        """Returns the squared gradient norms, shape (b,).

        The ghost norm ``sum (L L^T) * (R R^T)`` (Li et al. 2022, eq. 4) or the norm of the
        instantiated product, whichever costs fewer operations; the choice reads shapes only.
        """
        steps, rows, columns = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        if steps * (rows + columns) < rows * columns:
            return torch.einsum("bts,bts->b", _gram(self.left), _gram(self.right))
        return self.instantiate().square().sum((1, 2))

    def reach(self) -> Tensor:
        """Returns sum over t of ``|left[i, t]| |right[i, t]|``, shape (b,): the largest norm."""
        return (_lengths(self.left) * _lengths(self.right)).sum(1)

    def double(self, examples: Tensor) -> "OuterUse":
        """Returns the use of some examples in float64."""
        return OuterUse(self.left[examples].double(), self.right[examples].double())

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, rows, columns)."""
        return _norm_dtype(self.left).transpose(1, 2) @ _norm_dtype(self.right)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        left, right = _norm_dtype(self.left), _norm_dtype(self.right)
        scale = factors[:, None, None]
        if left.shape[2] < right.shape[2]:
            left = left * scale
        else:
            right = right * scale
        total.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))

    def keep(self, mask: Tensor) -> "OuterUse":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        return OuterUse(_keep(self.left, mask), _keep(self.right, mask))

    def by_unit(self, units: "Units") -> "OuterUse":
        """Returns the use whose example j is all rows of unit j, end to end along t."""
        return OuterUse(units.concatenate(self.left), units.concatenate(self.right))


@dataclass(frozen=True)
class RowsUse:
    """Gradient [i] has ``values[i, t]`` added to row ``ids[i, t]``: an embedding's weight.

    Attributes:
        ids: Row numbers, shape (b, t).
        values: Shape (b, t, columns).
        rows: Number of rows of the weight.
    """

    ids: Tensor
    values: Tensor
    rows: int

    def squared_norms(self) -> Tensor:
        """Returns the squared norms, shape (b,): rows of equal ids are summed, then squared."""
        count = self.ids.shape[0]
        example = torch.arange(count, device=self.ids.device)[:, None]
        keys, slot = torch.unique(example * self.rows + self.ids, return_inverse=True)
        values = _norm_dtype(self.values)
        summed = values.new_zeros(len(keys), values.shape[2])
        summed.index_add_(0, slot.flatten(), values.flatten(0, 1))
        norms = values.new_zeros(count)
        return norms.index_add_(0, keys // self.rows, summed.square().sum(1))

    def reach(self) -> Tensor:
        """Returns sum over t of ``|values[i, t]|``, shape (b,): the largest norm."""
        return _lengths(self.values).sum(1)

    def double(self, examples: Tensor) -> "RowsUse":
        """Returns the use of some examples in float64."""
        return RowsUse(self.ids[examples], self.values[examples].double(), self.rows)

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, rows, columns)."""
        count, _, columns = self.values.shape
        example = torch.arange(count, device=self.ids.device)[:, None]
        values = _norm_dtype(self.values)
        dense = values.new_zeros(count * self.rows, columns)
        dense.index_add_(0, (example * self.rows + self.ids).flatten(), values.flatten(0, 1))
        return dense.view(count, self.rows, columns)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        scaled = _norm_dtype(self.values) * factors[:, None, None]
        total.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1))

    def keep(self, mask: Tensor) -> "RowsUse":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        return RowsUse(self.ids, _keep(self.values, mask), self.rows)

    def by_unit(self, units: "Units") -> "RowsUse":
        """Returns the use whose example j is all rows of unit j, end to end along t."""
        return RowsUse(units.concatenate(self.ids), units.concatenate(self.values), self.rows)


@dataclass(frozen=True)
class GradientUse:
    """The per-example gradients themselves, for parameters small enough: biases and norms.

    Attributes:
        values: Shape (b, *parameter.shape).
    """

    values: Tensor

    def squared_norms(self) -> Tensor:
        """Returns the squared norms, shape (b,)."""
        return _norm_dtype(self.values).flatten(1).square().sum(1)

    def reach(self) -> Tensor:
        """Returns the norms, shape (b,)."""
        return self.squared_norms().sqrt()

    def double(self, examples: Tensor) -> "GradientUse":
        """Returns the use of some examples in float64."""
        return GradientUse(self.values[examples].double())

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, *parameter.shape)."""
        return _norm_dtype(self.values)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``."""
        total.add_(torch.einsum("b,b...->...", factors, _norm_dtype(self.values)))

    def keep(self, mask: Tensor) -> "GradientUse":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        return GradientUse(_keep(self.values, mask))

    def by_unit(self, units: "Units") -> "GradientUse":
        """Returns the use whose example j is the sum of unit j's rows."""
        return GradientUse(units.sum(_norm_dtype(self.values)))


Use = OuterUse | RowsUse | GradientUse


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
        labels, index = torch.unique(units, return_inverse=True)
        same_before = torch.tril(index[:, None] == index[None, :], diagonal=-1)
        position = same_before.sum(1)
        longest = int(position.max()) + 1
        return cls(index=index, position=position, count=len(labels), longest=longest)

    def concatenate(self, rows: Tensor) -> Tensor:
        """Returns (count, longest * t, …) from (b, t, …): a unit's rows end to end, zero padded."""
        grouped = rows.new_zeros(self.count, self.longest, *rows.shape[1:])
        grouped[self.index, self.position] = rows
        return grouped.flatten(1, 2)

    def sum(self, rows: Tensor) -> Tensor:
        """Returns (count, …) from (b, …): each unit's rows added up."""
        return rows.new_zeros(self.count, *rows.shape[1:]).index_add_(0, self.index, rows)


def merge_uses(uses: Sequence[Use]) -> list[Use]:
    """Returns at most one use of each kind: uses of one kind are joined along t."""
    outer = [use for use in uses if isinstance(use, OuterUse)]
    rows = [use for use in uses if isinstance(use, RowsUse)]
    gradients = [use for use in uses if isinstance(use, GradientUse)]
    merged: list[Use] = []
    if outer:
        merged.append(OuterUse(_join([u.left for u in outer]), _join([u.right for u in outer])))
    if rows:
        ids, values = _join([u.ids for u in rows]), _join([u.values for u in rows])
        merged.append(RowsUse(ids, values, rows[0].rows))
    if gradients:
        merged.append(GradientUse(torch.stack([u.values for u in gradients]).sum(0)))
    return merged


def squared_norms(uses: Sequence[Use]) -> Tensor:
    """Returns the squared norms of one parameter's per-example gradients, shape (b,).

    Where an example's terms cancel so far that rounding would show in its norm, the norm is taken
    again exactly, and not below a small share of its reach, the norm it would have if no two
    terms cancelled: a norm too small would let the example in above its bound.

    Args:
        uses: The parameter's uses, at most one of each kind.
    """
    squares = _squared_norms(uses)
    resolution = _RESOLUTION[squares.dtype]
    reach = torch.stack([use.reach() for use in uses]).sum(0)
    cancelled = (squares < resolution.share * reach.square()) & reach.isfinite()
    if bool(cancelled.any()):
        examples = cancelled.nonzero()[:, 0]
        chosen = [use.double(examples) for use in uses]
        exact = _squared_norms(chosen) if squares.dtype == torch.float32 else _dense_norms(chosen)
        floor = (resolution.floor * reach[examples].double()).square()
        squares[examples] = torch.maximum(exact, floor).to(squares.dtype)
    return squares


def _dense_norms(uses: Sequence[Use]) -> Tensor:
    dense = torch.stack([use.instantiate() for use in uses]).sum(0)
    return dense.flatten(1).square().sum(1)


def _squared_norms(uses: Sequence[Use]) -> Tensor:
    if len(uses) == 1:
        return uses[0].squared_norms()
    if len(uses) == 2 and isinstance(uses[0], OuterUse) and isinstance(uses[1], RowsUse):
        own = uses[0].squared_norms() + uses[1].squared_norms()
        return own + 2 * _tied_cross_term(uses[0], uses[1])
    return _dense_norms(uses)


def _tied_cross_term(head: OuterUse, embedding: RowsUse) -> Tensor:
    """Returns the inner products of head and embedding gradients of a tied weight, shape (b,).

    Sum over t, s of ``(values[t] . right[s]) * left[s, ids[t]]``, by gather: no tensor larger
    than (b, s, t) is made. Exact (DESIGN section 5).
    """
    steps = head.left.shape[1]
    ids = embedding.ids[:, None, :].expand(-1, steps, -1)
    picked = _norm_dtype(torch.gather(head.left, 2, ids))
    alignment = _norm_dtype(head.right) @ _norm_dtype(embedding.values).transpose(1, 2)
    return torch.einsum("bst,bst->b", picked, alignment)


def _lengths(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_norm_dtype(rows), dim=2)


def _gram(rows: Tensor) -> Tensor:
    rows = _norm_dtype(rows)
    return rows @ rows.transpose(1, 2)


def _norm_dtype(tensor: Tensor) -> Tensor:
    # A half-precision sum of squares is wrong in the third digit; float64 models stay float64.
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _keep(rows: Tensor, mask: Tensor) -> Tensor:
    shaped = mask.view(-1, *[1] * (rows.dim() - 1))
    return torch.where(shaped, rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
