"""Products of what layers recorded, and squared norms of their sums, each with its rounding.

A number of half precision has 8 (bfloat16) or 11 (float16) binary digits, so that the product of
two fits into the 24 of float32. An accelerator's matrix units multiply them so, several times
faster than they multiply float32: for norms they take what was recorded as it is. What a clip
factor was multiplied into has 24 digits, which three numbers of bfloat16 hold between them, so
that a weighted sum is three such products.

Matrix units add up in float32, but cut off what float32 would round: on one H100 sums of 6400
products of one sign came out 2.4e-5 too small, where float32's were 7e-7 off. What an example adds
is then shorter, never longer (benchmarks/results-gpu.md, tails). For norms no chain is longer than
``CHAIN``, and squares are raised by what they may have lost (``CUT_OFF``).

Where terms cancel, a square is small beside what it was computed from, and rounding shows in it.
Where products leave the range of the dtype (float32 takes 1e-23 squared for 0), a part of the
square is lost. So a square goes with a size that counts both, by which ``norms`` knows whether it
can be believed.

>>> whole = torch.tensor([1 / 3, -2e5 / 7])
>>> torch.equal(sum(part.float() for part in bfloat16_parts(whole.clone())), whole)
True
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.devices import multiplies_halves, sent
from dpft.privacy.clipping.choices import HALF_BANDS, HALF_STEPS

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


CPU_BLOCK = 2**17
"""On a processor, few enough for its cache."""
DEVICE_BLOCK = 2**24
"""And on an accelerator, so many that launches do not count; 64 MB for each result."""


def numbers_at_a_time(device: torch.device) -> int:
    """Returns how many numbers to work on at a time on a device."""
    return CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK


def is_same_tensor(kept: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers at the same place, one of them kept until now."""
    return (
        kept.data_ptr() == other.data_ptr()
        and kept.shape == other.shape
        and kept.stride() == other.stride()
        and kept.dtype == other.dtype
        and kept._version == other._version
    )


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

    def raised(self, *, factors: int = 1) -> "Squares":
        """Returns squares that are not below the true ones, though chains were cut off.

        Args:
            factors: How many chains of products of half precision each term has.
        """
        return Squares(self.values.add(self.terms, alpha=factors * CUT_OFF), self.terms)

    @classmethod
    def joined(cls, parts: "Iterable[Squares]") -> "Squares":
        """Returns the squares of some examples after those of others."""
        first, *others = parts
        if not others:
            return first
        every = (first, *others)
        return cls(torch.cat([p.values for p in every]), torch.cat([p.terms for p in every]))

    def times(self, factors: Tensor, *, squared: bool = True) -> "Squares":
        """Returns the squares of gradients that are ``factors`` times as long.

        What underflow took before, and takes now, counts among the terms: a factor of 1e20 makes
        much of a square that float32 took for 0.

        Args:
            factors: Shape (b,).
            squared: Whether they count twice; once in an inner product with other gradients.
        """
        dtype = self.values.dtype
        scale = factors.double().square() if squared else factors.double()
        terms = self.terms.double().add_(lost_by_underflow(dtype)).mul_(scale.abs())
        values, terms = ((self.values.double() * scale).to(dtype), terms.to(dtype))
        return Squares(values, terms.add_(lost_by_underflow(dtype)))


@dataclass(frozen=True)
class GramPair:
    """Inner products of a use's output gradients and of its inputs, or a band of them.

    Attributes:
        left: Shape (b, w, s), inner products of vectors of length ``rows``: of w positions with
            themselves, and with the s - w after them, which stand for those before as well.
        right: Shape (b, w, s), inner products of vectors of length ``columns``.
        rows: Products added up in an entry of ``left``.
        columns: Products added up in an entry of ``right``.
        steps: Positions of an example, w of them in this band.
        of_halves: Whether products of half precision were added up.
    """

    left: Tensor
    right: Tensor
    rows: int
    columns: int
    steps: int
    of_halves: bool = False


def gram_pairs(
    left: Tensor, right: Tensor, *, known: Sequence[Tensor] | None = None
) -> Iterator[GramPair]:
    """Yields what the ghost norm of (b, t, rows) and (b, t, columns) is the sum of.

    Both matrices are symmetric, so for long sequences what is below the diagonal, band by band,
    is counted by doubling what is above.

    Args:
        left: Shape (b, t, rows).
        right: Shape (b, t, columns).
        known: The bands of ``right``, where they are known.
    """
    steps, sizes = left.shape[1], (left.shape[2], right.shape[2])
    of_halves = stays_half(left) or stays_half(right)
    bands = gram_bands(right) if known is None else known
    for of_left, of_right in zip(gram_bands(left), bands, strict=True):
        yield GramPair(of_left, of_right, *sizes, steps, of_halves)


def gram_bands(rows: Tensor) -> Iterator[Tensor]:
    """Yields the inner products of (b, t, ·) from the diagonal on, band by band; one if t is small.

    ``squares_of_grams`` overwrites those that are ``left``, never those that are ``right``.
    """
    steps, rows = rows.shape[1], as_factor(rows)
    width = steps if steps < HALF_STEPS else -(-steps // HALF_BANDS)
    # A sequence of no positions has one band too, of nothing.
    for start in range(0, max(steps, 1), max(width, 1)):
        later = rows[:, start:] if start else rows
        first = later[:, :width] if width < later.shape[1] else later
        yield product(first, later.transpose(1, 2))


def squares_of_grams(pairs: Sequence[GramPair]) -> Squares:
    """Returns ``sum left * right`` of pairs of one shape, (pairs, b), overwriting ``left``."""
    if len(pairs) == 1:
        left, right = pairs[0].left.unsqueeze(0), pairs[0].right.unsqueeze(0)
    else:
        left, right = (torch.stack([getattr(p, side) for p in pairs]) for side in ("left", "right"))
    width = left.shape[2]
    lost = _lost_terms(left[..., :width], right[..., :width], pairs)
    products = left.mul_(right)
    square = product_sums(products[..., :width])
    if products.shape[3] > width:
        beyond = product_sums(products[..., width:])
        values = torch.add(square.values, beyond.values, alpha=2)
        square = Squares(values, torch.add(square.terms, beyond.terms, alpha=2))
    if any(pair.of_halves for pair in pairs):
        square = square.raised(factors=2)
    return Squares(square.values, square.terms.add_(lost))


def ghost_squares(left: Tensor, right: Tensor) -> Squares:
    """Returns ``sum (L L^T) * (R R^T)`` of each example, for (b, t, ·) and (b, t, ·).

    The ghost norm of Li et al. 2022, eq. 4.
    """
    whole = Squares.joined(squares_of_grams([pair]) for pair in gram_pairs(left, right))
    if len(whole.values) == 1:
        return Squares(whole.values[0], whole.terms[0])
    return Squares(whole.values.sum(0), whole.terms.sum(0))


def gram_squares(left: Tensor, right: Tensor, rows: int, columns: int) -> Squares:
    """Returns ``sum left * right`` of each example's Gram matrices, overwriting ``left``.

    Args:
        left: Shape (b, t, t), inner products of vectors of length ``rows``.
        right: Shape (b, t, t), inner products of vectors of length ``columns``.
        rows: Products added up in an entry of ``left``.
        columns: Products added up in an entry of ``right``.
    """
    square = squares_of_grams([GramPair(left, right, rows, columns, left.shape[1])])
    return Squares(square.values[0], square.terms[0])


def _lost_terms(left: Tensor, right: Tensor, pairs: Sequence[GramPair]) -> Tensor:
    """Returns what underflow may have taken from ghost norms, over the resolution, (pairs, b).

    An entry of a Gram matrix loses at most ``2 * rows * tiny``, where ``tiny`` is the dtype's
    least normal number, whether what is below is rounded or flushed to zero. What the square
    loses is that times the entries of the other matrix, whose magnitudes sum to at most t times
    its trace: all positions may meet all others, not those of a band alone.
    """
    info = torch.finfo(left.dtype)
    share = LOSS_SHARE * 2 * pairs[0].steps * info.tiny / info.eps
    traces = (each.diagonal(dim1=2, dim2=3).sum(2) for each in (left, right))
    sizes = [[[pair.columns * share, pair.rows * share]] for pair in pairs]
    if sizes.count(sizes[0]) == len(sizes):
        of_left, of_right = sizes[0][0]
        return next(traces).mul_(of_left).add_(next(traces), alpha=of_right)
    weights = sent(sizes, left.dtype, left.device).unbind(2)
    return torch.addcmul(next(traces).mul_(weights[0]), next(traces), weights[1])


SHORT_ROW = 64
"""Numbers up to which a row costs more than what it adds."""
LOSS_SHARE = 16
"""Units in the last place that a loss by underflow counts for: its bound is no estimate."""
MOST_NUMBERS = 2**32
"""Numbers of a weight, and products of a sum, at the most."""
LONGEST = 3e26
"""Most that the lengths of an example's inputs, or of its output gradients, may sum to in float32.

What is longer is paired with factors so small that their products lose digits, or, with large
ones, leave the range: such an example's gradient is formed by itself, in float64."""


def product_sums(products: Tensor) -> Squares:
    """Returns the sum of each example's products, for (…, b, t, s)."""
    flat = products.flatten(-2)
    return Squares(flat.sum(-1), torch.linalg.vector_norm(flat, ord=1, dim=-1))


def formed_squares(values: Tensor, norm_bound: Tensor) -> Squares:
    """Returns squares of gradients that were formed and then squared.

    Args:
        values: The squares, shape (b,).
        norm_bound: Largest norm that the same terms could have, shape (b,): an entry's rounding
            is a share of it, and the square's is twice the norm times that. The term in its
            square says that a gradient which rounding took for 0 is not one that is 0.
    """
    least = torch.finfo(values.dtype).eps ** 0.5
    terms = norm_bound * torch.add(2 * values.sqrt(), norm_bound, alpha=least)
    return Squares(values, terms.add_(lost_by_underflow(values.dtype)))


def lost_by_underflow(dtype: torch.dtype) -> float:
    """Returns the most that squares of a weight's numbers lose by underflow, as a term.

    A square below the least normal number loses at most that, and no weight has more than
    ``MOST_NUMBERS`` numbers. So a norm of 0 whose parts are not 0 is not believed, unless the
    clipping norm is far above what the parts can be.
    """
    info = torch.finfo(dtype)
    return LOSS_SHARE * MOST_NUMBERS * info.tiny / info.eps


def sums_of_squares(values: Tensor) -> Tensor:
    """Returns each example's sum of squares, (b,) from (b, …), without a copy of ``values``."""
    dtype = norm_dtype(values)
    norms: Tensor = torch.linalg.vector_norm(in_rows(values), dim=2, dtype=dtype)
    return norms.square().sum(1)


def in_rows(values: Tensor) -> Tensor:
    """Returns each example's numbers in rows, (b, n, m) from (b, …), which are squared row by row.

    One chain of a million float32 additions would lose digits; a row of the three numbers of a
    kernel costs more than it adds. So last dimensions are joined until a row is long enough.
    """
    first, length = values.dim(), 1
    least = max(1, min(2, first - 1))
    while first > least and length < SHORT_ROW:
        first -= 1
        length *= values.shape[first]
    return values.reshape(len(values), -1, length)


def lengths(rows: Tensor) -> Tensor:
    """Returns the norm of each position, (b, t) from (b, t, ·), or more where squares underflow."""
    dtype = norm_dtype(rows)
    lost: float = (rows.shape[2] * torch.finfo(dtype).tiny) ** 0.5
    norms: Tensor = torch.linalg.vector_norm(rows, dim=2, dtype=dtype)
    return norms.add_(lost)
