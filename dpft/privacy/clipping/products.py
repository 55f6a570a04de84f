"""Products of what layers recorded, in the dtype that norms and sums are taken in.

A number of half precision has 8 (bfloat16) or 11 (float16) binary digits, so that the product of
two fits into the 24 of float32. An accelerator's matrix units multiply them so, several times
faster than they multiply float32: for norms they take what was recorded as it is. What a clip
factor was multiplied into has 24 digits, which three numbers of bfloat16 hold between them, so
that a weighted sum is three such products.

Matrix units add up in float32, but cut off what float32 would round: on one H100 sums of 6400
products of one sign came out 2.4e-5 too small, where float32's were 7e-7 off. What an example adds
is then shorter, never longer (benchmarks/results-gpu.md, tails). For norms no chain is longer than
``CHAIN``, and squares are raised by what they may have lost (``CUT_OFF``).

>>> whole = torch.tensor([1 / 3, -2e5 / 7])
>>> torch.equal(sum(part.float() for part in bfloat16_parts(whole.clone())), whole)
True
"""

import torch
from torch import Tensor

from dpft.devices import multiplies_halves

PARTS = 3
"""Numbers of bfloat16 that hold one of float32."""
CHAIN = 4096
"""Products of half precision that are added up one after the other for a norm, at the most."""
CUT_OFF = CHAIN / 8 * 2.0**-23
"""Share of the magnitudes added up that such a chain loses at most: a unit in the last place each
time, of eight products or more."""


def in_norm_dtype(tensor: Tensor) -> Tensor:
    """Returns a tensor in the dtype that norms and sums are taken in.

    A half-precision sum of squares is wrong in the third digit; float64 models stay float64.
    """
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def norm_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype that norms and sums of a tensor are taken in."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def is_half(factor: Tensor) -> bool:
    """Whether a tensor is in half precision."""
    return factor.dtype in (torch.bfloat16, torch.float16)


def stays_half(tensor: Tensor) -> bool:
    """Whether a tensor is in half precision and multiplied so."""
    return is_half(tensor) and multiplies_halves(tensor.device)


def as_factor(tensor: Tensor) -> Tensor:
    """Returns a tensor as ``product`` takes it: in half precision where its device can."""
    return tensor if stays_half(tensor) else in_norm_dtype(tensor)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Returns ``left @ right``, both with two dimensions or three, in their norms' dtype."""
    left, right = as_factor(left), as_factor(right)
    if left.dtype != right.dtype:
        left, right = in_norm_dtype(left), in_norm_dtype(right)
    if not is_half(left):
        return torch.mm(left, right) if left.dim() == 2 else torch.bmm(left, right)
    total = None
    for pair in zip(left.split(CHAIN, -1), right.split(CHAIN, -2), strict=True):
        total = _added_halves(*pair, total)
    assert total is not None
    return total


def weighted_product(
    left: Tensor, right: Tensor, weights: Tensor, total: Tensor | None = None
) -> Tensor:
    """Returns the sum over i and t of ``weights[i]`` times ``left[i, t] right[i, t]^T``.

    Args:
        left: Shape (b, t, rows), or (b, rows) for one position each.
        right: Shape (b, t, columns), or (b, columns).
        weights: Shape (b,), of the dtype that norms are taken in.
        total: What it is added to, in place, shape (rows, columns); None for nothing.
    """
    of_left = left.shape[-1] < right.shape[-1]
    narrow, other = (left, right) if of_left else (right, left)
    scaled = in_norm_dtype(narrow) * weights.view(-1, *[1] * (narrow.dim() - 1))
    scaled, other = scaled.flatten(0, -2), as_factor(other).flatten(0, -2)
    if other.dtype == torch.bfloat16:
        parts = bfloat16_parts(scaled)
    else:
        parts, other = [scaled], in_norm_dtype(other)
    for part in reversed(parts):
        rows, columns = (part.t(), other) if of_left else (other.t(), part)
        if is_half(part):
            total = _added_halves(rows, columns, total)
        elif total is None:
            total = torch.mm(rows, columns)
        else:
            total.addmm_(rows, columns)
    assert total is not None
    return total


def _added_halves(left: Tensor, right: Tensor, total: Tensor | None) -> Tensor:
    """Returns ``left @ right`` of half precision in float32, added to ``total`` in place."""
    multiply, add = (torch.mm, torch.addmm) if left.dim() == 2 else (torch.bmm, torch.baddbmm)
    if total is None:
        found: Tensor = multiply(left, right, out_dtype=torch.float32)
        return found
    added: Tensor = add(total, left, right, out_dtype=torch.float32, out=total)
    return added


def bfloat16_parts(values: Tensor) -> list[Tensor]:
    """Returns numbers of bfloat16 that sum to those of float32, the largest first.

    Args:
        values: What they are made of; it is overwritten.
    """
    parts = []
    for _ in range(PARTS):
        parts.append(values.bfloat16())
        values.sub_(parts[-1])
    return parts
