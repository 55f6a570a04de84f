"""The norm of a parameter's per-example gradients from all of its uses, believed or taken again.

Sources: ghost norms, Li et al. 2022 section 4; the cross term of tied weights, DESIGN section 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.squares import (
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
        floor: Least norm, over its reach, that a gradient is clipped by. The clipped sum is
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


def squared_norms(uses: Sequence[Use]) -> Tensor:
    """Returns the squared norms of one parameter's per-example gradients, shape (b,).

    Where an example's terms cancel so far that rounding would show in its norm, the norm is taken
    again exactly, and not below a small share of its reach, the norm it would have if no two
    terms cancelled: a norm too small would let the example in above its bound.

    Args:
        uses: The parameter's uses, at most one of each kind.
    """
    squares = _squares(uses)
    dtype = squares.values.dtype
    share = _RESOLUTION[dtype].share
    cancelled = (squares.values < share * squares.terms) & squares.terms.isfinite()
    if bool(cancelled.any()):
        examples = cancelled.nonzero()[:, 0]
        squares.values[examples] = _taken_again(uses, examples, dtype)
    return squares.values


def _taken_again(uses: Sequence[Use], examples: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the squares of some examples without loss by cancellation, in ``dtype``."""
    chosen = [use.double(examples) for use in uses]
    floor = (_RESOLUTION[dtype].floor * _reach(chosen)).square()
    if dtype == torch.float64:
        # No better dtype to subtract in: the gradients themselves, one at a time.
        alone = ([use.double(example) for use in uses] for example in examples[:, None])
        exact = torch.cat([_dense_norms(each) for each in alone])
    else:
        exact = _squares(chosen).values
    return torch.maximum(exact, floor).to(dtype)


def _reach(uses: Sequence[Use]) -> Tensor:
    return torch.stack([use.reach() for use in uses]).sum(0)


def _dense_norms(uses: Sequence[Use]) -> Tensor:
    return sums_of_squares(torch.stack([use.instantiate() for use in uses]).sum(0))


def _squares(uses: Sequence[Use]) -> Squares:
    if len(uses) == 1:
        return uses[0].squares()
    if len(uses) == 2 and isinstance(uses[0], OuterUse) and isinstance(uses[1], RowsUse):
        cross = _tied_cross_term(uses[0], uses[1])
        return uses[0].squares() + uses[1].squares() + cross + cross
    return formed_squares(_dense_norms(uses), _reach(uses))


def _tied_cross_term(head: OuterUse, embedding: RowsUse) -> Squares:
    """Returns the inner products of head and embedding gradients of a tied weight, shape (b,).

    Sum over t, s of ``(values[t] . right[s]) * left[s, ids[t]]``, by gather: no tensor larger
    than (b, s, t) is made. Exact (DESIGN section 5).
    """
    steps = head.left.shape[1]
    ids = embedding.ids[:, None, :].expand(-1, steps, -1)
    picked = in_norm_dtype(torch.gather(head.left, 2, ids))
    alignment = in_norm_dtype(head.right) @ in_norm_dtype(embedding.values).mT
    return product_sums(picked.mul_(alignment))
