"""The norm of a parameter's per-example gradients from all of its uses, believed or taken again.

A norm is taken again in float64 where terms cancel so far that rounding shows, where products
underflow so that a part of the square is lost, and where squares overflow though the gradient
does not.

Sources: ghost norms, Li et al. 2022 section 4; the cross term of tied weights, docs/design.md, the
clipper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.squares import (
    LOSS_SHARE,
    Squares,
    formed_squares,
    in_norm_dtype,
    product_sums,
    sums_of_squares,
)
from dpft.privacy.clipping.uses import OuterUse, RowsUse, Use


@dataclass(frozen=True)
class _Resolution:
    """How far terms may cancel before a dtype's sums of products stop being good enough.

    Attributes:
        share: Share of its terms under which a square is taken again, without subtracting large
            numbers from each other.
        floor: Least norm, over its norm bound, that a gradient is clipped by. The clipped sum is
            formed in the model's own dtype, so below it a factor would magnify rounding.
    """

    share: float
    floor: float


# Measured on gradients built to cancel, 2 to 1024 positions: above these shares the norm, and
# above these floors the clipped gradient, is good to 1e-5 (float32) and 1e-10 (float64).
_RESOLUTION = {
    torch.float32: _Resolution(share=5e-3, floor=1e-3),
    torch.float64: _Resolution(share=1e-6, floor=1e-7),
}


LONGEST = 3e26
"""Most that the lengths of an example's inputs, or of its output gradients, may sum to in float32.

What is longer is paired with factors so small that their products lose digits, or, with large
ones, leave the range: such an example counts as not finite."""


def squared_norms(uses: Sequence[Use], *, negligible: float = 0.0) -> Tensor:
    """Returns the squared norms of one parameter's per-example gradients, shape (b,).

    Where an example's terms cancel so far that rounding would show in its norm, or products
    leave the dtype's range, the norm is taken again exactly, and not below a small share of its
    norm bound, the norm it would have if no two terms cancelled: a norm too small would let the
    example in above its bound.

    Args:
        uses: The parameter's uses, at most one of each kind.
        negligible: A square so small that no factor depends on it; errors of its size stay.

    Returns:
        The squares, in float64 where one was taken again: float32 does not hold all of them.
        Infinite or NaN where the gradient is not finite, or too large to be scaled.
    """
    squares = _squares(uses)
    share = _RESOLUTION[squares.values.dtype].share
    # False for NaN as well, and where an infinite square meets infinite terms.
    believed = torch.sub(squares.values, squares.terms, alpha=share) >= -negligible
    if bool(believed.all()):
        return squares.values
    examples = (~believed).nonzero()[:, 0]
    values = squares.values.double()
    values[examples] = _taken_again(uses, examples, squares.values.dtype)
    return values


def _taken_again(uses: Sequence[Use], examples: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the squared norms of some examples in float64, without what ``dtype`` lost."""
    chosen = [use.double(examples) for use in uses]
    floor = (_RESOLUTION[dtype].floor * _norm_bound(chosen)).square()
    if dtype == torch.float64:
        # No better dtype to subtract in: the gradients themselves, one at a time.
        alone = ([use.double(example) for use in uses] for example in examples[:, None])
        exact = torch.cat([_dense_norms(each) for each in alone])
    else:
        exact = _squares(chosen).values
        exact = torch.where(_longest(chosen) <= LONGEST, exact, torch.inf)
    return torch.maximum(exact, floor)


def _longest(uses: Sequence[Use]) -> Tensor:
    """Returns the larger of the summed lengths of inputs and of output gradients, shape (b,)."""
    return torch.stack([use.extent() for use in uses]).amax(0)


def _norm_bound(uses: Sequence[Use]) -> Tensor:
    return torch.stack([use.norm_bound() for use in uses]).sum(0)


def _dense_norms(uses: Sequence[Use]) -> Tensor:
    return sums_of_squares(torch.stack([use.instantiate() for use in uses]).sum(0))


def _squares(uses: Sequence[Use]) -> Squares:
    if len(uses) == 1:
        return uses[0].squares()
    if len(uses) == 2 and isinstance(uses[0], OuterUse) and isinstance(uses[1], RowsUse):
        cross = _tied_cross_term(uses[0], uses[1])
        return uses[0].squares() + uses[1].squares() + cross + cross
    return formed_squares(_dense_norms(uses), _norm_bound(uses))


def _tied_cross_term(head: OuterUse, embedding: RowsUse) -> Squares:
    """Returns the inner products of head and embedding gradients of a tied weight, shape (b,).

    Sum over t, s of ``(values[t] . right[s]) * left[s, ids[t]]``, by gather: no tensor larger
    than (b, s, t) is made. Exact (docs/design.md, the clipper).
    """
    steps = head.left.shape[1]
    ids = embedding.ids[:, None, :].expand(-1, steps, -1)
    picked = in_norm_dtype(torch.gather(head.left, 2, ids))
    alignment = in_norm_dtype(head.right) @ in_norm_dtype(embedding.values).mT
    # What an entry of the alignment lost by underflow, times what it meets.
    met = torch.linalg.vector_norm(picked.flatten(1), ord=1, dim=1)
    info = torch.finfo(picked.dtype)
    lost = met * (LOSS_SHARE * 2 * head.right.shape[2] * info.tiny / info.eps)
    cross = product_sums(picked.mul_(alignment))
    return Squares(cross.values, cross.terms + lost)
