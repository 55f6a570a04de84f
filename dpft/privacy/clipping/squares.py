"""Squared norms of sums of products, each with the size of the terms it was added up from.

Where terms cancel, a square is small beside what it was computed from, and rounding shows in it.
Where products leave the range of the dtype (float32 takes 1e-23 squared for 0), a part of the
square is lost. So a square goes with a size that counts both, by which ``norms`` knows whether it
can be believed.
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
        terms: Sum of the magnitudes of what was added up, and of what may have underflowed over
            the dtype's resolution, shape (b,); the error is a few units in the last place of
            this, not of the value. Infinite or NaN where something overflowed.
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
        return gram_squares(left @ left.mT, right @ right.mT, left.shape[2], right.shape[2])
    width = -(-steps // HALF_BANDS)
    total = _nothing(left)
    for start in range(0, steps, width):
        upper = left[:, start : start + width] @ left[:, start:].mT
        other = right[:, start : start + width] @ right[:, start:].mT
        # All positions may meet all others, not those of the band alone.
        lost = _lost_terms(upper, other, left.shape[2], right.shape[2], steps)
        upper *= other
        square = product_sums(upper[:, :, :width])
        beyond = product_sums(upper[:, :, width:])
        total = total + Squares(square.values, square.terms + lost) + beyond + beyond
    return total


def gram_squares(left: Tensor, right: Tensor, rows: int, columns: int) -> Squares:
    """Returns ``sum left * right`` of each example's Gram matrices, overwriting ``left``.

    Args:
        left: Shape (b, t, t), inner products of vectors of length ``rows``.
        right: Shape (b, t, t), inner products of vectors of length ``columns``.
        rows: Products added up in an entry of ``left``.
        columns: Products added up in an entry of ``right``.
    """
    lost = _lost_terms(left, right, rows, columns, left.shape[1])
    square = product_sums(left.mul_(right))
    return Squares(square.values, square.terms.add_(lost))


def _lost_terms(left: Tensor, right: Tensor, rows: int, columns: int, steps: int) -> Tensor:
    """Returns what underflow may have taken from a ghost norm, over the resolution, (b,).

    An entry of a Gram matrix loses at most ``2 * rows * tiny``, where ``tiny`` is the dtype's
    least normal number, whether what is below is rounded or flushed to zero. What the square
    loses is that times the entries of the other matrix, whose magnitudes sum to at most t times
    its trace.
    """
    info = torch.finfo(left.dtype)
    traces = [each.diagonal(dim1=1, dim2=2).sum(1) for each in (left, right)]
    return torch.add(traces[1] * rows, traces[0], alpha=columns) * (
        LOSS_SHARE * 2 * steps * info.tiny / info.eps
    )


LOSS_SHARE = 16
"""Units in the last place that a loss by underflow counts for: its bound is no estimate."""


def product_sums(products: Tensor) -> Squares:
    """Returns the sum of each example's products, (b, t, s)."""
    flat = products.flatten(1)
    return Squares(flat.sum(1), torch.linalg.vector_norm(flat, ord=1, dim=1))


def formed_squares(values: Tensor, norm_bound: Tensor) -> Squares:
    """Returns squares of gradients that were formed and then squared.

    Args:
        values: The squares, shape (b,). Underflow takes nothing from them that counts: an entry
            whose square is lost is below 1e-19 (float32), and 1e9 of them are below 1e-14.
        norm_bound: Largest norm that the same terms could have, shape (b,): an entry's rounding
            is a share of it, and the square's is twice the norm times that. The term in its
            square says that a gradient which rounding took for 0 is not one that is 0.
    """
    least = torch.finfo(values.dtype).eps ** 0.5
    return Squares(values, norm_bound * torch.add(2 * values.sqrt(), norm_bound, alpha=least))


def sums_of_squares(values: Tensor) -> Tensor:
    """Returns each example's sum of squares, (b,) from (b, …), without a copy of ``values``."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    last = values.shape[-1] if values.dim() > 2 else values[0].numel()
    # Row by row first: one chain of a million float32 additions would lose digits.
    rows = values.reshape(len(values), -1, last)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=2, dtype=dtype)
    return norms.square().sum(1)


def lengths(rows: Tensor) -> Tensor:
    """Returns the norm of each position, (b, t) from (b, t, ·), or more where squares underflow."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    lost: float = (rows.shape[2] * torch.finfo(dtype).tiny) ** 0.5
    norms: Tensor = torch.linalg.vector_norm(rows, dim=2, dtype=dtype)
    return norms.add_(lost)


def in_norm_dtype(tensor: Tensor) -> Tensor:
    """Returns a tensor in the dtype that norms and sums are taken in.

    A half-precision sum of squares is wrong in the third digit; float64 models stay float64.
    """
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _nothing(like: Tensor) -> Squares:
    zeros = like.new_zeros(len(like))
    return Squares(zeros, zeros)
