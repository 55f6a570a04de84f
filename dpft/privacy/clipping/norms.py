"""Per-example gradient norms of a parameter over all its uses, taken again in float64 if unsure.

A norm is taken again in float64 where terms cancel so far that rounding shows, where products
underflow so that a part of the square is lost, and where squares overflow though the gradient
does not. Where terms cancel so far that even the sum of float32 products would be mostly rounding,
the gradient itself is formed in float64: of it the norm is taken, and it is what is added. So is
one of inputs or output gradients too large for float32 products.

Small formed gradients, of biases and norm layers, stand side by side in a few matrices: there are
many, and each is so small that the operations on it cost more than their arithmetic. Their norms
and sums are taken in float64, which holds every float32 square.

Sources: ghost norms, Li et al. 2022 section 4; the cross term of tied weights, docs/design.md, the
clipper.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.squares import (
    LONGEST,
    LOSS_SHARE,
    Squares,
    formed_squares,
    in_norm_dtype,
    lost_by_underflow,
    numbers_at_a_time,
    product_sums,
    stays_half,
    sums_of_squares,
)
from dpft.privacy.clipping.uses import (
    GradientUse,
    OuterProduct,
    RowsUse,
    Use,
    sum_of_rows,
)


@dataclass(frozen=True)
class _Resolution:
    """How far terms may cancel before a dtype's sums of products stop being good enough.

    Attributes:
        share: Share of its terms under which a square is taken again, without subtracting large
            numbers from each other.
        floor: Share of its norm bound under which a gradient is formed by itself: in the model's
            own dtype a sum of its products would be rounding, which a factor would magnify.
    """

    share: float
    floor: float


# Measured on gradients built to cancel, 2 to 1024 positions: above these shares the norm, and
# above these floors the clipped gradient, is good to 1e-5 (float32) and 1e-10 (float64).
_RESOLUTION = {
    torch.float32: _Resolution(share=5e-3, floor=1e-3),
    torch.float64: _Resolution(share=1e-6, floor=1e-7),
}
FORMED_AT_A_TIME = 2**20
"""Numbers of a gradient that are formed in float64 at a time (8 MB)."""


@dataclass(frozen=True)
class CarefulSquares:
    """Squared norms of one parameter's per-example gradients, each good to a few roundings.

    Attributes:
        values: Shape (b,), in float64 where one was taken again: float32 does not hold all of
            them. Infinite or NaN where the gradient is not finite.
        formed: Which examples' terms cancel so far, or are so large, that ``formed_gradient`` is
            what the norm was taken of and what must be added, shape (b,); None for none.
    """

    values: Tensor
    formed: Tensor | None = None


def squared_norms(uses: Sequence[Use], *, negligible: float = 0.0) -> CarefulSquares:
    """Returns the squared norms of one parameter's per-example gradients.

    Where an example's terms cancel so far that rounding would show in its norm, or products
    leave the dtype's range, the norm is taken again exactly: a norm too small would let the
    example in above its bound.

    Args:
        uses: The parameter's uses, at most one of each kind.
        negligible: A square so small that no factor depends on it; errors of its size stay.
    """
    squares = unchecked_squares(uses)
    # False for NaN as well, and where an infinite square meets infinite terms.
    believed = error_margin(squares) >= -negligible
    if bool(believed.all()):
        return CarefulSquares(squares.values)
    examples = (~believed).nonzero()[:, 0]
    again, formed = _rechecked(uses, examples, squares.values.dtype)
    values = squares.values.double().index_copy(0, examples, again)
    return CarefulSquares(values, torch.zeros_like(believed).index_copy(0, examples, formed))


def error_margin(squares: Squares, dtype: torch.dtype | None = None) -> Tensor:
    """Returns how far squares are above the share of their terms that can be believed.

    It is below zero where they cannot, and NaN where they are not finite.

    Args:
        squares: Of some gradients.
        dtype: What they were computed in; None: what they are given in.
    """
    share = _RESOLUTION[dtype or squares.values.dtype].share
    return torch.sub(squares.values, squares.terms, alpha=share)


def _rechecked(uses: Sequence[Use], examples: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns the squared norms of some examples in float64, and which of their gradients formed.

    Without what ``dtype`` lost.
    """
    chosen = [use.double(examples) for use in uses]
    exact = unchecked_squares(chosen).values
    if all(isinstance(use, GradientUse) for use in uses):
        # Formed as they are; nothing in them cancels.
        return exact, torch.zeros_like(examples, dtype=torch.bool)
    if dtype == torch.float64:
        # No better dtype to subtract in: the gradients themselves, one at a time.
        formed = exact.isfinite()
    else:
        floor = (_RESOLUTION[dtype].floor * _norm_bound(chosen)).square()
        longest = torch.stack([use.extent() for use in chosen]).amax(0)
        formed = exact.isfinite() & ((exact < floor) | (longest > LONGEST))
    values = exact.clone()
    for place in formed.nonzero()[:, 0].tolist():
        parts = [part.square().sum() for _, part in formed_gradient(uses, examples[place])]
        values[place] = torch.stack(parts).sum()
    return values, formed


def formed_gradient(uses: Sequence[Use], example: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields one example's gradient of a parameter in float64, and which of its rows each part is.

    Args:
        uses: All of the parameter's uses, so that what cancels is added before anything is rounded.
        example: Which example, without dimensions.
    """
    alone = [use.double(example[None]) for use in uses]
    shape = alone[0].parameter_shape
    step = max(1, FORMED_AT_A_TIME // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        parts = [use.of_rows(start, stop).instantiate()[0] for use in alone]
        yield slice(start, stop), torch.stack(parts).sum(0)


def _norm_bound(uses: Sequence[Use]) -> Tensor:
    return torch.stack([use.norm_bound() for use in uses]).sum(0)


def unchecked_squares(uses: Sequence[Use]) -> Squares:
    """Returns the squares with the size of their terms, whether they can be believed or not.

    Args:
        uses: The parameter's uses, at most one of each kind.
    """
    if len(uses) == 1:
        return uses[0].squares()
    if len(uses) == 2 and isinstance(uses[0], OuterProduct) and isinstance(uses[1], RowsUse):
        cross = _tied_cross_term(uses[0], uses[1])
        return uses[0].squares() + uses[1].squares() + cross + cross
    dense = torch.stack([use.instantiate() for use in uses]).sum(0)
    squares = formed_squares(sums_of_squares(dense), _norm_bound(uses))
    of_halves = any(isinstance(use, OuterProduct) and stays_half(use.left) for use in uses)
    return squares.raised() if of_halves else squares


def _tied_cross_term(head: OuterProduct, embedding: RowsUse) -> Squares:
    """Returns the inner products of head and embedding gradients of a tied weight, shape (b,).

    Sum over t, s of ``(values[t] . right[s]) * left[s, ids[t]]``, by gather: no tensor larger
    than (b, s, t) is made. Exact (docs/design.md, the clipper).
    """
    values = in_norm_dtype(embedding.values)

    def inner(picked: Tensor, inputs: Tensor) -> Squares:
        alignment = torch.bmm(inputs, values.transpose(1, 2))
        # What an entry of the alignment lost by underflow, times what it meets; and the products.
        met = torch.linalg.vector_norm(picked.flatten(1), ord=1, dim=1)
        info = torch.finfo(picked.dtype)
        lost = met * (LOSS_SHARE * 2 * inputs.shape[2] * info.tiny / info.eps)
        cross = product_sums(picked * alignment)
        return Squares(cross.values, cross.terms + lost.add_(lost_by_underflow(picked.dtype)))

    return head.cross_term(embedding.ids, inner)


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
        # A processor makes a copy in float64: of some rows at a time it is soon made.
        values = self.values
        count = max(1, numbers_at_a_time(values.device) // max(1, values.shape[1]))
        parts = values.split(count) if len(values) else [values]
        norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]
        return torch.cat(norms).square()

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

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, torch.dtype], list[tuple[str, Tensor]]] = defaultdict(list)
        self._sizes: dict[tuple[int, torch.dtype], int] = defaultdict(int)

    def add(self, name: str, group: int, values: Tensor) -> GradientMatrix | None:
        """Takes a parameter's gradients, (b, *shape); returns the matrix that they fill, if any."""
        values = in_norm_dtype(values)
        key = (group, values.dtype)
        self._waiting[key].append((name, values))
        self._sizes[key] += values.numel()
        return self._matrix(key) if self._sizes[key] >= MATRIX else None

    def rest(self) -> list[GradientMatrix]:
        """Hands over what waits for more."""
        return [self._matrix(key) for key in list(self._waiting)]

    def _matrix(self, key: tuple[int, torch.dtype]) -> GradientMatrix:
        named = self._waiting.pop(key)
        self._sizes.pop(key)
        names, gradients = zip(*named, strict=True)
        shapes = tuple(gradient.shape[1:] for gradient in gradients)
        flat = [g if g.dim() == 2 else g.reshape(len(g), -1) for g in gradients]
        whole = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        return GradientMatrix(names, shapes, key[0], whole)


def is_small(values: Tensor) -> bool:
    """Whether gradients (b, *shape) belong beside others."""
    return values.numel() <= SMALL_GRADIENT * len(values)
