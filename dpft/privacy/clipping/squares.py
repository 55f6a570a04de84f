"""Squared norms of sums of products, each with the size of the terms it was added up from.

Where terms cancel, a square is small beside what it was computed from, and rounding shows in it.
So a square goes with that size, by which ``norms`` knows whether it can be believed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.costs import HALF_BANDS, HALF_STEPS


@dataclass(frozen=True)
class Squares:
    """Squared norms of per-example gradients.

    Attributes:
        values: The squares, shape (b,).
        terms: Sum of the magnitudes of what was added up, shape (b,); rounding is a few units in
            the last place of this, not of the value.
    """

    values: Tensor
    terms: Tensor

    def __add__(self, other: "Squares") -> "Squares":
        return Squares(self.values + other.values, self.terms + other.terms)


def ghost_squares(left: Tensor, right: Tensor) -> Squares:
    """Returns ``sum (L L^T) * (R R^T)`` of each example, for (b, t, ·) and (b, t, ·).

    The ghost norm of Li et al. 2022, eq. 4. Both matrices are symmetric, so for long sequences
    what is below the diagonal, band by band, is counted by doubling what is above.
    """
    steps = left.shape[1]
    if steps < HALF_STEPS:
        return product_sums((left @ left.mT).mul_(right @ right.mT))
    width = -(-steps // HALF_BANDS)
    total = _nothing(left)
    for start in range(0, steps, width):
        upper = left[:, start : start + width] @ left[:, start:].mT
        upper *= right[:, start : start + width] @ right[:, start:].mT
        square = product_sums(upper[:, :, :width])
        beyond = product_sums(upper[:, :, width:])
        total = total + square + beyond + beyond
    return total


def product_sums(products: Tensor) -> Squares:
    """Returns the sum of each example's products, (b, t, s)."""
    flat = products.flatten(1)
    return Squares(flat.sum(1), torch.linalg.vector_norm(flat, ord=1, dim=1))


def formed_squares(values: Tensor, reach: Tensor) -> Squares:
    """Returns squares of gradients that were formed and then squared.

    Args:
        values: The squares, shape (b,).
        reach: Largest norm that the same terms could have, shape (b,): an entry's rounding is a
            share of it, and the square's is twice the norm times that.
    """
    return Squares(values, 2 * values.sqrt() * reach)


def sums_of_squares(values: Tensor) -> Tensor:
    """Returns each example's sum of squares, (b,) from (b, …), without a copy of ``values``."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    last = values.shape[-1] if values.dim() > 2 else values[0].numel()
    # Row by row first: one chain of a million float32 additions would lose digits.
    rows = torch.linalg.vector_norm(values.reshape(len(values), -1, last), dim=2, dtype=dtype)
    return rows.square().sum(1)


def lengths(rows: Tensor) -> Tensor:
    """Returns the norm of each position, (b, t) from (b, t, ·)."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    return torch.linalg.vector_norm(rows, dim=2, dtype=dtype)


def in_norm_dtype(tensor: Tensor) -> Tensor:
    """Returns a tensor in the dtype that norms and sums are taken in.

    A half-precision sum of squares is wrong in the third digit; float64 models stay float64.
    """
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _nothing(like: Tensor) -> Squares:
    zeros = like.new_zeros(len(like))
    return Squares(zeros, zeros)
