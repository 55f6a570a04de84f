"""Recorded layer calls: factored per-example gradients of a weight, their norms and weighted sums.

A use of a parameter is what one call of a layer contributes to its per-example gradients, kept
in factored form. Several uses of one parameter (a tied head, a layer called twice) add up before
the norm is taken (``norms``). Notation: b examples, t positions, gradient of example i in
brackets [i].

Sources: ghost norms, Li et al. 2022 section 4; book-keeping, Bu et al. 2023.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpft.devices import add_rows
from dpft.privacy.clipping.choices import ProductShape, examples_per_block, ghost_is_cheaper
from dpft.privacy.clipping.patch_use import PatchUse
from dpft.privacy.clipping.squares import (
    Squares,
    formed_squares,
    ghost_squares,
    in_norm_dtype,
    lengths,
    lost_by_underflow,
    norm_dtype,
    product,
    stays_half,
    sums_of_squares,
    weighted_product,
)
from dpft.privacy.clipping.trainable import Units

EXACT_AT_A_TIME = 2**22
"""Numbers copied to float64 at a time (32 MB), where a sum is taken in it on an accelerator."""
EXACT_IN_CACHE = 2**19
"""And on a processor (4 MB)."""
ROWS_TOGETHER = 4
"""Formed gradients that are added in their own dtype; the sums of so many are added in float64."""
SMALL = 2**12
"""Weights up to which libraries add a product up one position after the other, not in tiles."""


@dataclass(frozen=True)
class OuterProduct:
    """Gradient [i] = sum over t of ``left[i, t] right[i, t]^T``: a matrix product's weight.

    Attributes:
        left: Shape (b, t, rows); rows and columns are those of the weight.
        right: Shape (b, t, columns).
    """

    left: Tensor
    right: Tensor

    def squares(self) -> Squares:
        """Returns the squared gradient norms.

        The ghost norm ``sum (L L^T) * (R R^T)`` (Li et al. 2022, eq. 4) or the norm of the
        instantiated product, a few examples at a time, whichever the cost model calls
        cheaper; the choice reads shapes only.
        """
        if ghost_is_cheaper(self.shape):
            return ghost_squares(self.left, self.right)
        size = examples_per_block(self.shape)
        pairs = zip(self.left.split(size), self.right.split(size), strict=True)
        values = [sums_of_squares(OuterProduct(*pair).instantiate()) for pair in pairs]
        squares = formed_squares(torch.cat(values), self.norm_bound())
        return squares.raised() if stays_half(self.left) else squares

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of norms and sums."""
        return norm_dtype(self.left)

    @property
    def shape(self) -> ProductShape:
        """The sizes that decide how norms are taken."""
        count, steps, rows = self.left.shape
        return ProductShape(count, steps, rows, self.right.shape[2])

    def cross_term(self, ids: Tensor, inner: Callable[[Tensor, Tensor], Squares]) -> Squares:
        """Returns what ``inner`` makes of output gradients at some rows, and of the inputs.

        Args:
            ids: Which rows of the weight, (b, s).
            inner: Takes ``left[i, t, ids[i, s]]``, (b, t, s), and ``right``, (b, t, columns).
        """
        wanted = ids[:, None, :].expand(-1, self.left.shape[1], -1)
        picked = in_norm_dtype(torch.gather(self.left, 2, wanted))
        return inner(picked, in_norm_dtype(self.right))

    def norm_bound(self) -> Tensor:
        """Returns sum over t of ``|left[i, t]| |right[i, t]|``, shape (b,).

        No gradient is longer, and one whose terms all point one way is as long.
        """
        return (lengths(self.left) * lengths(self.right)).sum(1)

    def extent(self) -> Tensor:
        """Returns the larger of the sums over t of ``|left[i, t]|`` and ``|right[i, t]|``, (b,).

        Where it is too large, float32 cannot scale the example (``squares.LONGEST``).
        """
        return torch.maximum(lengths(self.left).sum(1), lengths(self.right).sum(1))

    def double(self, examples: Tensor) -> "OuterProduct":
        """Returns the use of some examples in float64."""
        return OuterProduct(self.left[examples].double(), self.right[examples].double())

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, rows, columns)."""
        return product(self.left.transpose(1, 2), self.right)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        if total.numel() <= SMALL:
            total.add_(self.weighted_sum(factors))
        else:
            weighted_product(self.left, self.right, factors, total)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, shape (rows, columns)."""
        factored = self.left, self.right, factors
        if math.prod(self.parameter_shape) <= SMALL:
            return weighted_product(*(each.double() for each in factored)).to(self.dtype)
        return weighted_product(*factored)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return self.left.shape[2], self.right.shape[2]

    def of_rows(self, start: int, stop: int) -> "OuterProduct":
        """Returns the use of some rows of the weight alone."""
        return OuterProduct(self.left[:, :, start:stop], self.right)

    def keep(self, mask: Tensor) -> "OuterProduct":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        return OuterProduct(_keep(self.left, mask), _keep(self.right, mask))

    def by_unit(self, units: Units) -> "OuterProduct":
        """Returns the use whose example j is all rows of unit j, end to end along t."""
        return OuterProduct(units.concatenate(self.left), units.concatenate(self.right))


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

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of norms and sums."""
        return norm_dtype(self.values)

    def squares(self) -> Squares:
        """Returns the squared norms: rows of equal ids are summed, then squared."""
        values = in_norm_dtype(self.values)
        return formed_squares(self._summed_and_squared(values), self.norm_bound())

    def norm_bound(self) -> Tensor:
        """Returns the norm of a gradient whose rows each add up values of one direction, (b,)."""
        return self._summed_and_squared(lengths(self.values).unsqueeze(2)).sqrt()

    def _summed_and_squared(self, values: Tensor) -> Tensor:
        """Returns the squared norms, shape (b,), of the sums over equal ids of (b, t, ·)."""
        example, slot = self._slots_by_example
        summed = values.new_zeros(len(slot), values.shape[2])
        add_rows(summed, slot, values.flatten(0, 1))
        squares = values.new_zeros(len(self.ids))
        return add_rows(squares, example, summed.square().sum(1))

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """The look-ups in ascending order of id and, within an id, of example, and their places."""
        count = len(self.ids)
        example = torch.arange(count, device=self.ids.device).unsqueeze(1)
        keys, order = torch.add(example, self.ids, alpha=count).view(-1).sort()
        return keys, order

    @cached_property
    def _slots_by_example(self) -> tuple[Tensor, Tensor]:
        """Each slot's example, and each look-up's slot, shared by those of one example and id."""
        keys, order = self._sorted
        return _slots(keys, order, keys % len(self.ids))

    @cached_property
    def _slots_by_id(self) -> tuple[Tensor, Tensor]:
        """Each slot's id, and each look-up's slot, shared by those of one id."""
        keys, order = self._sorted
        ids = keys // len(self.ids)
        return _slots(ids, order, ids)

    def extent(self) -> Tensor:
        """Returns the sum over t of ``|values[i, t]|``, shape (b,)."""
        return lengths(self.values).sum(1)

    def double(self, examples: Tensor) -> "RowsUse":
        """Returns the use of some examples in float64."""
        return RowsUse(self.ids[examples], self.values[examples].double(), self.rows)

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, rows, columns)."""
        count, _, columns = self.values.shape
        example = torch.arange(count, device=self.ids.device)[:, None]
        values = in_norm_dtype(self.values)
        dense = values.new_zeros(count * self.rows, columns)
        add_rows(dense, (example * self.rows + self.ids).flatten(), values.flatten(0, 1))
        return dense.view(count, self.rows, columns)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        scaled = (in_norm_dtype(self.values) * factors.view(-1, 1, 1)).flatten(0, 1)
        ids, slot = self._slots_by_id
        most = EXACT_IN_CACHE if scaled.device.type == "cpu" else EXACT_AT_A_TIME
        width = max(1, most // max(1, len(scaled)))
        for part, into in zip(scaled.split(width, 1), total.split(width, 1), strict=True):
            values = part.double()
            sums = add_rows(torch.zeros_like(values), slot, values)
            into.index_add_(0, ids, sums.to(total.dtype))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, shape (rows, columns)."""
        total = self.values.new_zeros(self.rows, self.values.shape[2], dtype=self.dtype)
        self.add_weighted_sum(factors, total)
        return total

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return self.rows, self.values.shape[2]

    def of_rows(self, start: int, stop: int) -> "RowsUse":
        """Returns the use of some rows of the weight alone."""
        inside = (self.ids >= start) & (self.ids < stop)
        ids = (self.ids - start).clamp(0, stop - start - 1)
        return RowsUse(ids, self.values * inside.unsqueeze(2), stop - start)

    def keep(self, mask: Tensor) -> "RowsUse":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        return RowsUse(self.ids, _keep(self.values, mask), self.rows)

    def by_unit(self, units: Units) -> "RowsUse":
        """Returns the use whose example j is all rows of unit j, end to end along t."""
        return RowsUse(units.concatenate(self.ids), units.concatenate(self.values), self.rows)


@dataclass(frozen=True)
class GradientUse:
    """The per-example gradients themselves, for parameters small enough: biases and norms.

    Attributes:
        values: Shape (b, *parameter.shape).
    """

    values: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of norms and sums."""
        return norm_dtype(self.values)

    def squares(self) -> Squares:
        """Returns the squared norms; nothing in them can cancel, but small ones underflow."""
        values = sums_of_squares(self.values)
        return Squares(values, values + lost_by_underflow(values.dtype))

    def norm_bound(self) -> Tensor:
        """Returns the norms themselves, shape (b,): nothing in them can cancel."""
        return sums_of_squares(self.values).sqrt()

    def extent(self) -> Tensor:
        """Returns zeros, shape (b,): a gradient that is formed is scaled as it is."""
        return self.values.new_zeros(len(self.values))

    def double(self, examples: Tensor) -> "GradientUse":
        """Returns the use of some examples in float64."""
        return GradientUse(self.values[examples].double())

    def instantiate(self) -> Tensor:
        """Returns the per-example gradients, shape (b, *parameter.shape)."""
        return in_norm_dtype(self.values)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``."""
        total.add_(self.weighted_sum(factors))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, of the parameter's shape."""
        values = in_norm_dtype(self.values).reshape(len(self.values), -1)
        return sum_of_rows(factors, values).view(self.values.shape[1:])

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The parameter's shape."""
        return tuple(self.values.shape[1:])

    def of_rows(self, start: int, stop: int) -> "GradientUse":
        """Returns the use of some rows of the parameter alone."""
        return GradientUse(self.values[:, start:stop])

    def keep(self, mask: Tensor) -> "GradientUse":
        """Returns the use with the examples where ``mask`` is False replaced by zeros."""
        return GradientUse(_keep(self.values, mask))

    def by_unit(self, units: Units) -> "GradientUse":
        """Returns the use whose example j is the sum of unit j's rows."""
        return GradientUse(units.sum(in_norm_dtype(self.values)))


Use = OuterProduct | RowsUse | GradientUse | PatchUse


def merge_uses(uses: Sequence[Use]) -> list[Use]:
    """Returns at most one use of each kind: uses of one kind are joined along t.

    Several of a convolution's become formed gradients: their images may be of several sizes.
    """
    patches = [use for use in uses if isinstance(use, PatchUse)]
    if len(patches) > 1 or len(patches) < len(uses):
        uses = [GradientUse(u.instantiate()) if isinstance(u, PatchUse) else u for u in uses]
        patches = []
    outer = [use for use in uses if isinstance(use, OuterProduct)]
    rows = [use for use in uses if isinstance(use, RowsUse)]
    gradients = [use for use in uses if isinstance(use, GradientUse)]
    merged: list[Use] = [*patches]
    if outer:
        merged.append(OuterProduct(_join([u.left for u in outer]), _join([u.right for u in outer])))
    if rows:
        ids, values = _join([u.ids for u in rows]), _join([u.values for u in rows])
        merged.append(RowsUse(ids, values, rows[0].rows))
    if gradients:
        formed = [in_norm_dtype(use.values) for use in gradients]
        added = formed[0] if len(formed) == 1 else torch.stack(formed).sum(0)
        merged.append(GradientUse(added))
    return merged


def _keep(rows: Tensor, mask: Tensor) -> Tensor:
    shaped = mask.view(-1, *[1] * (rows.dim() - 1))
    return torch.where(shaped, rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def sum_of_rows(factors: Tensor, values: Tensor) -> Tensor:
    """Returns sum over i of ``factors[i] * values[i]``, for (b, n).

    Guarantees:
        Of float32 it is within ``(ROWS_TOGETHER * sum of |factors[i] * values[i]| + |sum|) * eps /
        2`` in each coordinate, to first order in eps: each term is rounded at most so often before
        it is added in float64.
    """
    columns = values.split(max(1, EXACT_AT_A_TIME // max(1, len(values))), 1)
    sums = [_sum_of_rows(factors.to(values.dtype), part).to(values.dtype) for part in columns]
    return sums[0] if len(sums) == 1 else torch.cat(sums)


def _sum_of_rows(factors: Tensor, values: Tensor) -> Tensor:
    even = len(values) - len(values) % ROWS_TOGETHER
    weights, groups = (each[:even].unflatten(0, (-1, ROWS_TOGETHER)) for each in (factors, values))
    total = torch.bmm(weights.unsqueeze(1), groups).squeeze(1).sum(0, dtype=torch.float64)
    return total if even == len(values) else total.add_(factors[even:] @ values[even:])


def _slots(keys: Tensor, order: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each slot's label, and each look-up's slot, for slots of equal keys.

    Without a look at how many there are, for which an accelerator would have to wait: there are
    as many slots as look-ups, and those that nothing falls on have label 0.

    Args:
        keys: In ascending order, shape (n,).
        order: The place of each key's look-up among the look-ups, shape (n,).
        labels: Of the keys; equal where keys are, shape (n,).
    """
    begins = keys[1:] != keys[:-1]
    slot = torch.nn.functional.pad(begins.cumsum(0), (1, 0))[: len(keys)]
    label = torch.zeros_like(labels).scatter_(0, slot, labels)
    return label, torch.empty_like(slot).scatter_(0, order, slot)
