r"""Norms, upper bounds and weighted sums of per-example gradients from recorded tensors.

The gradient of one example of a linear layer is a sum of outer products of output gradients and
inputs. Its norm follows from two Gram matrices without the gradient itself (the ghost norm, Li et
al. 2022, arXiv 2110.05679, section 4). The sum of clipped gradients of all examples is one matrix
product (book-keeping, Bu et al. 2023, arXiv 2210.00038).

This module is separate because it contains all floating-point arithmetic that the guarantee of the
clipper depends on:

    For each unit i, the norm of ``factors[i] * gradient[i]``, as ``weighted_sums`` adds it with all
    rounding included, is at most ``factors[i]`` times the root of ``bounds()[i]``.

``docs/dev/norm-bound.md`` proves this statement. A number in parentheses, such as (12), is a line
of that page. Letters of shapes: u privacy units, t positions of a unit, p outputs, d inputs, k
uses.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from dpft.errors import InputError

HALF_DTYPES = (torch.bfloat16, torch.float16)
SLACK = 1 + 2.0**-10
"""Factor that covers the float64 rounding of an error term (8)."""
BOUND_SLACK = 1 + 2.0**-36
"""Factor for float64 rounding: it covers one bound, and a sum of at most 60,000 bounds (9)."""
LEAST_FACTOR = 2.0**-64
"""Least clip factor. A unit with a smaller factor adds nothing: its products might underflow
(17)."""
EXTRA_STEPS = 4
"""Number of roundings of a term in addition to those of the sum: of factor times operand, of the
product, and of the addition to a tied weight's total (15)."""
HALF_STEPS = (1.5, 3.0)
"""Rounding errors of a sum in a matrix unit, in units of u: for each product, and once per sum
(4)."""
LEAST_SQUARE = torch.finfo(torch.float64).tiny
"""A float64 square below this number may be treated as zero (1)."""
MOST_ROUNDING = 2.0**-3
"""Largest relative error of a sum for which the proof's inequalities hold (2)."""


# ------------------------------------------------------------------------------- rounding of sums
@dataclass(frozen=True)
class PieceSizes:
    """Number of products that one matrix product adds up; longer sums are added piece by piece (3).

    Attributes:
        gram: The number for Gram matrices.
        contraction: The number for weighted sums, whose pieces have the size of the weight.
    """

    gram: int
    contraction: int


CPU_PIECES = PieceSizes(gram=512, contraction=1024)
ACCELERATOR_PIECES = PieceSizes(gram=2048, contraction=8192)


def pieces(device: torch.device) -> PieceSizes:
    """Return the piece lengths of a device; longer pieces cost fewer calls and more rounding."""
    return CPU_PIECES if device.type == "cpu" else ACCELERATOR_PIECES


def chain(products: int, piece: int, *, halves: bool = False) -> float:
    """Return c(K), the number of roundings, in units of u, that a product takes part in (3), (4).

    Args:
        products: K, the number of products that are added up.
        piece: Number of products that one matrix product adds up, in any order.
        halves: Whether the factors are multiplied in half precision, with float32 sums.
    """
    within = min(products, piece)
    steps = HALF_STEPS[0] * within + HALF_STEPS[1] if halves else within
    return steps + max(0, -(-products // piece) - 1)


def gamma(steps: float, unit: float) -> float:
    """Return γ = s u / (1 - s u), which bounds the relative error of s roundings (2).

    Raises:
        InputError: A sum is too long for its precision.
    """
    if steps * unit > MOST_ROUNDING:
        raise InputError(
            "sums over a micro-batch have too many terms for their precision. Use smaller"
            " micro-batches or shorter examples.",
            key=None,
        )
    return steps * unit / (1 - steps * unit)


def widened(values: Tensor) -> Tensor:
    """Return values in float32 or float64."""
    return values.float() if values.dtype in HALF_DTYPES else values


def multiplied_as_halves(left: Tensor, right: Tensor) -> bool:
    """Return whether two operands are multiplied in half precision with float32 sums.

    This is the case only on accelerators that truncate as (4) assumes: NVIDIA GPUs from compute
    capability 8.0 on.
    """
    is_half = left.dtype in HALF_DTYPES and left.dtype == right.dtype
    return is_half and _truncates_as_assumed(left.device)


@cache
def _truncates_as_assumed(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _same_precision(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return two operands in float32, or both in float64 if one of them is in float64."""
    left, right = widened(left), widened(right)
    return (left, right) if left.dtype == right.dtype else (left.double(), right.double())


def _product(pairs: Sequence[tuple[Tensor, Tensor]], piece: int) -> Tensor:
    """Return the sum of the batched products of pairs, in float32 or float64.

    Args:
        pairs: Operands, shapes (n, r, K) and (n, K, c). If there are two pairs, they are in half
            precision.
        piece: Number of products that are added up at a time.
    """
    halves = multiplied_as_halves(*pairs[0])
    if not halves:
        pairs = [_same_precision(*pair) for pair in pairs]
        n, count = len(pairs[0][0]), pairs[0][0].shape[2] // piece
        # Many small calls, such as for the head of a large vocabulary, take longer than few calls.
        numbers = count * pairs[0][0].shape[1] * pairs[0][1].shape[2]
        if n < count and numbers <= SMALL_OPERANDS:
            return _product_of_many_pieces(*pairs[0], piece)
    total = None
    for start in range(0, max(1, pairs[0][0].shape[2]), piece):
        part = None
        for left, right in pairs:
            if right.shape[1] > piece:
                left, right = left[:, :, start : start + piece], right[:, start : start + piece]
            if not halves:
                part = torch.bmm(left, right)
            elif part is None:
                part = torch.bmm(left, right, out_dtype=torch.float32)
            else:
                part = torch.baddbmm(part, left, right, out_dtype=torch.float32)
        assert part is not None
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _product_of_many_pieces(left: Tensor, right: Tensor, piece: int) -> Tensor:
    """Return ``_product`` of one pair; compute all pieces of one of the n products at a time."""
    whole = left.shape[2] // piece * piece
    lefts = left[:, :, :whole].unflatten(2, (-1, piece)).transpose(1, 2)
    rights = right[:, :whole].unflatten(1, (-1, piece))
    total = torch.stack([torch.bmm(*pair).sum(0) for pair in zip(lefts, rights, strict=True)])
    if whole < left.shape[2]:
        total += torch.bmm(left[:, :, whole:], right[:, whole:])
    return total


# ------------------------------------------------------------------------------------------ norms
def _lengths(values: Tensor, more: float = 0.0) -> Tensor:
    """Return upper bounds of L2 norms along the last dimension, plus ``more``; float64 (8)."""
    lengths: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return lengths + (2 * math.sqrt(values.shape[-1] * LEAST_SQUARE) + more)


@dataclass
class GradientNorms:
    """Norms of per-example gradients, each a float64 tensor of shape (u,), or (k, u) for k weights.

    Attributes:
        square: Squared norm as computed.
        error: Maximum amount by which ``square`` may be too small.
        rounding: Maximum amount by which rounding may increase the gradient's norm when the
            gradient is scaled and added.
    """

    square: Tensor
    error: Tensor
    rounding: Tensor

    def bounds(self) -> Tensor:
        """Return squared upper bounds (6); infinite or NaN for units that must be skipped (23)."""
        return ((self.square.abs() + self.error).sqrt() + self.rounding).square() * BOUND_SLACK

    def of(self, index: int | slice) -> "GradientNorms":
        """Return the norms of one of k weights, shape (u,), or of several of them."""
        return GradientNorms(self.square[index], self.error[index], self.rounding[index])


def _wide_dtype(*operands: Tensor) -> torch.dtype:
    """Return the dtype for sums of products of operands: float64 if an operand is in float64."""
    wide = any(values.dtype == torch.float64 for values in operands)
    return torch.float64 if wide else torch.float32


def _least(values: Tensor) -> float:
    """Return the least normal number of the dtype in which values are added up."""
    return torch.finfo(_wide_dtype(values)).tiny


def _unit(*operands: Tensor) -> float:
    """Return the unit roundoff u of the coarsest operand, at most float32's."""
    exact = all(values.dtype == torch.float64 for values in operands)
    return 2.0**-53 if exact else 2.0**-24


def _numbers_at_a_time(device: torch.device) -> int:
    """Return how many numbers are processed together; on a CPU, so few that they fit the cache."""
    return 2**20 if device.type == "cpu" else 2**24


def formed_norms(values: Tensor) -> GradientNorms:
    """Return the norms of gradients that are given as tensors, shape (u, n) (20)."""
    u, n = values.shape
    # A CPU copies the numbers that it squares in float64, so they are processed in parts.
    parts = values.split(max(1, _numbers_at_a_time(values.device) // max(1, u)), 1)
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
    square = norm.square()
    steps = gamma(u + EXTRA_STEPS, _unit(values))
    return GradientNorms(
        square,
        square * ((n + 4) * 2.0**-52) + 4 * n * LEAST_SQUARE,
        norm * (steps * SLACK) + 4 * n**0.5 * _least(values) / LEAST_FACTOR,
    )


# ------------------------------------------------------------------------------------------- uses
@dataclass
class Outer:
    """One use of a weight by a matrix product: gradient[i] = sum_t left[i, t] right[i, t]^T.

    Attributes:
        left: Output gradients, shape (u, t, p).
        right: Inputs, shape (u, t, d).
    """

    left: Tensor
    right: Tensor

    @property
    def is_better_formed(self) -> bool:
        """Whether the gradients take no more memory than the operands."""
        (_, t, p), d = self.left.shape, self.right.shape[2]
        bytes_kept = t * (p * self.left.element_size() + d * self.right.element_size())
        return p * d * _wide_dtype(self.left, self.right).itemsize <= bytes_kept

    @property
    def size(self) -> int:
        """Number of entries of both operands."""
        return self.left.numel() + self.right.numel()

    def formed(self) -> Tensor:
        """Return the gradients, shape (u, p, d), float32 or float64."""
        return _product([(self.left.mT, self.right)], pieces(self.left.device).contraction)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return the sum over i of factors[i] gradient[i], shape (p, d); see ``weighted_sums``."""
        return next(weighted_sums([self], factors))[1]

    def without(self, keep: Tensor) -> "Outer":
        """Return the use with zeros for the units that ``keep``, shape (u,), excludes."""
        keep = keep.view(-1, 1, 1)
        return Outer(self.left.where(keep, 0), self.right.where(keep, 0))

    @classmethod
    def concatenate(cls, uses: "Sequence[Outer]") -> "Outer":
        """Return several uses of one weight as one, with their positions side by side."""
        return cls(
            _concatenate([use.left for use in uses]), _concatenate([use.right for use in uses])
        )


@dataclass
class Lookup:
    """One use of an embedding: gradient[i] has values[i, t] added to its entry ids[i, t].

    Attributes:
        ids: Entries of the weight, shape (u, t), int64.
        values: Output gradients, shape (u, t, d); zeros at padding.
        count: Number of entries of the weight.
    """

    ids: Tensor
    values: Tensor
    count: int

    @property
    def is_better_formed(self) -> bool:
        """Whether the gradients take no more memory than the values."""
        bytes_kept = self.ids.shape[1] * self.values.element_size()
        return self.count * _wide_dtype(self.values).itemsize <= bytes_kept

    def formed(self) -> Tensor:
        """Return the gradients, shape (u, count, d), float32 or float64."""
        values = widened(self.values)
        u, _, d = values.shape
        # Each pair of unit and row has its own slot.
        units = torch.arange(u, device=self.ids.device)
        slots = self.ids + units.unsqueeze(1) * self.count
        sums = values.new_zeros(u * self.count, d)
        return sums.index_add_(0, slots.flatten(), values.flatten(0, 1)).view(u, -1, d)

    def weighted_sum(self, factors: Tensor, total: Tensor | None = None) -> Tensor:
        """Return the sum over i of factors[i] gradient[i], shape (count, d).

        Args:
            factors: Clip factors, shape (u,).
            total: The weighted sum of a tied head, to which this sum is added in place.
        """
        values = widened(self.values)
        values = (values * rounded_down(factors, values.dtype).view(-1, 1, 1)).flatten(0, 1)
        ids = self.ids.flatten()
        if total is None:
            return values.new_zeros(self.count, values.shape[1]).index_add_(0, ids, values)
        # First sum all values of the same entry at one place: the place of the entry's first value
        # in sorted order. Each entry's sum is then added to the total only once (15); all other
        # places add zeros.
        entries = ids.sort().values
        sums = torch.zeros_like(values)
        sums.index_add_(0, torch.searchsorted(entries, ids), values)
        return total.index_add_(0, entries, sums.to(total.dtype))

    def without(self, keep: Tensor) -> "Lookup":
        """Return the use with zeros for the units that ``keep``, shape (u,), excludes."""
        return Lookup(self.ids, self.values.where(keep.view(-1, 1, 1), 0), self.count)

    @classmethod
    def concatenate(cls, uses: "Sequence[Lookup]") -> "Lookup":
        """Return several uses of one weight as one, with their positions side by side."""
        ids, values = (
            _concatenate([use.ids for use in uses]),
            _concatenate([use.values for use in uses]),
        )
        return cls(ids, values, uses[0].count)

    def norms(self) -> GradientNorms:
        """Return the norms, shape (u,)."""
        return lookup_norms([self]).of(0)


def lookup_norms(uses: Sequence[Lookup]) -> GradientNorms:
    """Return the norms of uses whose values have one shape and dtype, shape (k, u) (18), (19).

    If a unit looks up the same row of the weight several times, the values are summed first.
    """
    values = widened(_stacked([use.values for use in uses]))
    k, u, t, d = values.shape
    ids = _stacked([use.ids for use in uses]).reshape(k * u, t).contiguous()
    # Sum all values of the same row at one place: the place of the row's first value when the
    # unit's values are sorted by row.
    places = torch.searchsorted(ids.sort(dim=1).values, ids)
    units = torch.arange(k * u, device=ids.device).unsqueeze(1)
    places = places.add(units, alpha=t).flatten()
    values = values.flatten(0, 2)
    lengths = _lengths(values)
    lengths = torch.zeros_like(lengths).index_add_(0, places, lengths)
    sums = torch.zeros_like(values).index_add_(0, places, values)
    norm = torch.linalg.vector_norm(sums.view(k, u, t * d), dim=2, dtype=torch.float64)
    # The norm if no two values of a row canceled.
    longest: Tensor = torch.linalg.vector_norm(lengths.view(k, u, t), dim=2)
    square, unit, least = norm.square(), _unit(values), _least(values)
    moved = longest * (gamma(t, unit) * SLACK) + 2 * t * d**0.5 * least * SLACK
    error = moved.add(norm, alpha=2) * moved
    error = error.add(square, alpha=(t * d + 4) * 2.0**-51) + 4 * t * d * LEAST_SQUARE
    steps = gamma(u * t + EXTRA_STEPS, unit)
    lost = 4 * t * d**0.5 * least / LEAST_FACTOR
    return GradientNorms(square, error, longest * (steps * SLACK) + lost)


def _concatenate(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors (u, ·, …) along their second dimension, in the widest of their dtypes."""
    if len(parts) == 1:
        return parts[0]
    if len({part.dtype for part in parts}) > 1:
        parts = [part.to(_wide_dtype(*parts)) for part in parts]
    return torch.cat(parts, 1)


# ------------------------------------------------------------------------------------ ghost norms
def outer_norms(uses: Sequence[Outer]) -> GradientNorms:
    """Return the norms of each use, shape (k, u); all uses have the same u and t.

    The Gram matrix of a tensor that is the ``right`` of several uses (query, key and value; gate
    and up) is computed only once.
    """
    u, t = uses[0].left.shape[:2]
    # All uses of a partition have the same two dtypes. Their sizes may differ.
    partitions: dict[tuple[torch.dtype, torch.dtype], list[int]] = {}
    for index, use in enumerate(uses):
        partitions.setdefault((use.left.dtype, use.right.dtype), []).append(index)
    count = max(1, _numbers_at_a_time(uses[0].left.device) // max(1, u * t * t))
    parts, order = [], []
    for indices in partitions.values():
        grams: dict[Identity, Tensor] = {}
        for start in range(0, len(indices), count):
            chunk = indices[start : start + count]
            norms, grams = _outer_norms([uses[index] for index in chunk], grams)
            parts.append(norms)
            order += chunk
    if len(parts) == 1:
        return parts[0]
    fields = [
        torch.cat(field)
        for field in zip(*((n.square, n.error, n.rounding) for n in parts), strict=True)
    ]
    if len(partitions) > 1:
        places = torch.tensor(order, device=fields[0].device).argsort()
        fields = [field[places] for field in fields]
    return GradientNorms(*fields)


SMALL_OPERANDS = 2**18
"""Number of entries up to which operands of equal shape are copied into one batched product, which
is faster."""


LONG_GRAM = 256
"""Number of positions from which it is faster to compute only one of each two symmetric entries of
a Gram matrix."""


def _chunks(indices: list[int], numbers: int) -> Iterator[list[int]]:
    """Yield indices of operands that are copied together; each operand has ``numbers`` entries."""
    together = SMALL_OPERANDS // max(1, numbers)
    together = together if together > 2 else 1  # Copying only two saves no operation.
    for start in range(0, len(indices), together):
        yield indices[start : start + together]


def _alike(uses: Sequence[Outer]) -> Iterator[list[int]]:
    """Yield indices of equally shaped uses that are processed together."""
    by_shape: dict[tuple[object, ...], list[int]] = {}
    for index, use in enumerate(uses):
        key = use.left.shape, use.right.shape, use.left.dtype, use.right.dtype
        by_shape.setdefault(key, []).append(index)
    for indices in by_shape.values():
        yield from _chunks(indices, uses[indices[0]].size)


def formed_gradients(uses: Sequence[Outer]) -> Iterator[tuple[int, Tensor]]:
    """Yield the index and the gradients, shape (u, p d), of each use, in no particular order."""
    for chunk in _alike(uses):
        parts = [uses[index] for index in chunk]
        use = parts[0]
        if len(parts) > 1:
            left, right = ([p.left for p in parts], [p.right for p in parts])
            use = Outer(torch.cat(left), torch.cat(right))
        yield from zip(chunk, use.formed().flatten(1).chunk(len(chunk)), strict=True)


def _grams(operands: list[Tensor]) -> list[Tensor]:
    """Return the Gram matrix of each (u, t, n), shape (u, t, t), float32 or float64."""
    by_shape: dict[tuple[int, torch.dtype], list[int]] = {}
    for index, values in enumerate(operands):
        by_shape.setdefault((values.shape[2], values.dtype), []).append(index)
    grams = list(operands)
    for indices in by_shape.values():
        first = operands[indices[0]]
        piece = pieces(first.device).gram
        for chunk in _chunks(indices, first.numel()):
            parts = [operands[index] for index in chunk]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            product = _gram(joined, piece)
            for index, gram in zip(chunk, product.chunk(len(chunk)), strict=True):
                grams[index] = gram
    return grams


def _gram(values: Tensor, piece: int) -> Tensor:
    """Return the Gram matrix of (n, t, K), shape (n, t, t); if t is large, mirror half of it."""
    t = values.shape[1]
    if t < LONG_GRAM:
        return _product([(values, values.mT)], piece)
    upper = _product([(values[:, : t // 2], values.mT)], piece)
    corner = _gram(values[:, t // 2 :], piece)
    lower = torch.cat([upper[:, :, t // 2 :].mT, corner], 2)
    return torch.cat([upper, lower], 1)


@dataclass(frozen=True)
class _Constants:
    """Constants of k uses that depend only on public sizes, float64.

    In a dimension of 2, the first entry is for the output gradients and the second for the inputs.

    Attributes:
        stretch: Factor of the diagonals of Gram matrices, shape (2, k, 1, 1) (11).
        lost: Amount to add afterwards, shape (2, k, 1, 1) (11).
        errors: Factors of (a), (b), (d) and (c), shape (4, k, 1) (13).
        squares: Factors of the squared sums of lengths, shape (2, k, 1) (13).
        totals: Factors of these sums, shape (2, k, 1) (17).
        alone: The last term, shape (k, 1) (17).
    """

    stretch: Tensor
    lost: Tensor
    errors: Tensor
    squares: Tensor
    totals: Tensor
    alone: Tensor


@lru_cache(maxsize=1024)
def _constants(
    t: int, sizes: tuple[tuple[int, int], ...], units: tuple[float, float],
    least: tuple[float, float], halves: tuple[bool, bool], device: torch.device,
) -> _Constants:  # fmt: skip
    """Return the constants of uses with t positions and of the given sizes (p, d)."""
    rows, piece, unit = [], pieces(device).gram, min(units)
    of_sum = gamma(t + 2 + (t + 10) * 2.0**-53 / unit, unit)  # (12)
    underflow = 4 * max(least) / LEAST_FACTOR  # (17)
    for p, d in sizes:
        steps = [chain(n, piece, halves=half) for n, half in zip((p, d), halves, strict=True)]
        of_left, of_right = (gamma(s, unit) for s, unit in zip(steps, units, strict=True))
        stretch = [1 / (1 - 2 * s * unit) for s, unit in zip(steps, units, strict=True)]  # (11)
        lost = [4 * n * tiny for n, tiny in zip((p, d), least, strict=True)]  # (5)
        rows.append(
            [
                *stretch,
                *(a * b for a, b in zip(lost, stretch, strict=True)),
                *(SLACK * error for error in (of_left, of_right, of_sum, of_left * of_right)),
                *(SLACK * 2 * lost[1], SLACK * 2 * lost[0]),
                *(underflow * d**0.5, underflow * p**0.5, underflow * t * (p * d) ** 0.5),
            ]
        )
    table = torch.tensor(rows, dtype=torch.float64).t().unsqueeze(2).to(device)
    stretch, lost, errors, squares, totals, alone = table.split([2, 2, 4, 2, 2, 1])
    return _Constants(
        stretch.unsqueeze(3), lost.unsqueeze(3), errors, squares, totals, alone.squeeze(0)
    )


Identity = tuple[int, torch.Size, tuple[int, ...], int]
"""Key that identifies the memory and version of a tensor while the tensor is alive."""


def _identity(values: Tensor) -> Identity:
    return values.data_ptr(), values.shape, values.stride(), values._version


def _outer_norms(
    uses: list[Outer], grams: dict[Identity, Tensor]
) -> tuple[GradientNorms, dict[Identity, Tensor]]:
    """Return the norms of uses of one precision, (k, u), and the Gram matrices of their inputs.

    Args:
        uses: Uses of the same u and t.
        grams: Gram matrices of inputs that were computed before.
    """
    u, t = uses[0].left.shape[:2]
    keys = [_identity(use.right) for use in uses]
    new = {key: use.right for key, use in zip(keys, uses, strict=True) if key not in grams}
    computed = dict(zip(new, _grams(list(new.values())), strict=True))
    of_inputs = {key: computed[key] if key in computed else grams[key] for key in keys}
    left = _stacked(_grams([use.left for use in uses]))
    right = _stacked([of_inputs[key] for key in keys])
    first, device = uses[0], left.device
    units, leasts = (_unit(first.left), _unit(first.right)), (_least(left), _least(right))
    halves = (
        multiplied_as_halves(first.left, first.left),
        multiplied_as_halves(first.right, first.right),
    )
    sizes = tuple((use.left.shape[2], use.right.shape[2]) for use in uses)
    constants = _constants(t, sizes, units, leasts, halves, device)
    if left.dtype != right.dtype:
        left, right = left.double(), right.double()
    unit, least = _unit(left), _least(left)

    # For both operands, shapes (2, k, u, t) and (2, k, u); letters as in the proof.
    diagonals = torch.stack([gram.diagonal(dim1=2, dim2=3) for gram in (left, right)])
    squares = torch.addcmul(constants.lost, diagonals, constants.stretch)  # (11)
    lengths = squares.sqrt()
    trace, total = squares.sum(3), lengths.sum(3)
    rows = torch.stack([torch.linalg.vector_norm(gram, dim=3) for gram in (left, right)])
    norm = torch.linalg.vector_norm(rows, dim=3, dtype=torch.float64)
    stretch = SLACK / math.sqrt(1 - 2 * (t + 2) * unit)
    norm = norm * stretch + 2 * t * math.sqrt(least) * stretch  # (14)
    longest = lengths.prod(0).sum(2)  # B, the norm if no two products cancel each other
    largest = longest.square()
    square = left.mul_(right).sum(3).sum(2, dtype=torch.float64)
    products = (trace[0] * norm[1], trace[1] * norm[0], norm[0] * norm[1], largest)
    error = (torch.minimum(torch.stack(products), largest) * constants.errors).sum(0)  # (13)
    error = error + (total.square() * constants.squares).sum(0) + 8 * t * t * least * SLACK
    summed_as_halves = multiplied_as_halves(first.left, first.right)
    added = chain(u * t, pieces(device).contraction, halves=summed_as_halves)
    steps = gamma(added + EXTRA_STEPS, max(units))  # (15)
    lost = (total * constants.totals).sum(0) + constants.alone  # (17)
    return GradientNorms(square, error, lost.add(longest, alpha=steps) * SLACK), of_inputs


def _stacked(parts: list[Tensor]) -> Tensor:
    """Return tensors stacked along a new first dimension, without copying a single tensor."""
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)


def tied_norms(
    head: GradientNorms, embedding: GradientNorms, outer: Outer, lookup: Lookup
) -> GradientNorms:
    """Return the norms of a weight that is both head and embedding, shape (u,) (21), (22).

    The inner product of the two gradients is the sum over s, t of (values[t] . right[s]) times
    left[s, ids[t]], which only needs tensors of shape (u, s, t).

    Args:
        head: Norms of ``outer``, shape (u,).
        embedding: Norms of ``lookup``, shape (u,).
        outer: Use of the head.
        lookup: Use of the embedding.
    """
    s, t, d = outer.right.shape[1], *lookup.values.shape[1:]
    ids = lookup.ids.unsqueeze(1).expand(-1, s, -1)
    picked = widened(outer.left.gather(2, ids))
    piece = pieces(outer.right.device).gram
    aligned = _product([(outer.right, lookup.values.mT)], piece)
    unit, least = _unit(outer.left, outer.right, lookup.values), torch.finfo(torch.float32).tiny
    halves = multiplied_as_halves(outer.right, lookup.values)
    cross = (picked * aligned).sum(2).sum(1, dtype=torch.float64)
    sums = gamma(chain(d, piece, halves=halves), unit)
    steps = gamma(t + s * 2.0**-53 / unit + 2, unit)
    rate = sums + steps + sums * steps
    more = math.sqrt(8 * d * least / rate)
    right, values = _lengths(outer.right, more), _lengths(lookup.values, more)
    longest = (picked.abs() * right.unsqueeze(2) * values.unsqueeze(1)).sum((1, 2))
    error = (head.error + embedding.error).add(longest, alpha=2 * SLACK * rate)  # (21), (22)
    return GradientNorms(
        head.square + embedding.square + 2 * cross,
        error + 8 * s * t * least * SLACK,
        head.rounding + embedding.rounding,
    )


# ---------------------------------------------------------------------------------- weighted sums
def rounded_down(factors: Tensor, dtype: torch.dtype) -> Tensor:
    """Return factors in a dtype, rounded down; 0 for those below ``LEAST_FACTOR`` (16).

    Float32 factors have already been rounded down and are not rounded again.
    """
    if factors.dtype == torch.float32:
        return factors.to(dtype)
    large = factors.where(factors >= LEAST_FACTOR, 0)
    if dtype == factors.dtype:
        return large
    return (large.double() * (1 - 2.0**-23)).to(dtype)


def weighted_sums(uses: Sequence[Outer], factors: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of each use and the sum over i of factors[i] gradient[i].

    Sums of equally shaped small uses are one batched product. The order is not specified.

    Args:
        uses: Uses with the same u, in which ``without`` has replaced non-finite units by zeros.
        factors: Clip factors, shape (u,): float64, or float32 from ``rounded_down``.

    Yields:
        Index, and the sum, shape (p, d), float32 or float64.
    """
    rounded_factors: dict[torch.dtype, Tensor] = {}
    for chunk in _alike(uses):
        first = uses[chunk[0]]
        dtype = _wide_dtype(first.left, first.right)
        if dtype not in rounded_factors:
            rounded_factors[dtype] = rounded_down(factors, dtype).view(-1, 1, 1)
        left = _stacked([uses[index].left for index in chunk])
        right = _stacked([uses[index].right for index in chunk])
        yield from zip(
            chunk, _contracted(left, right, rounded_factors[dtype]).unbind(0), strict=True
        )


def _contracted(left: Tensor, right: Tensor, factors: Tensor) -> Tensor:
    """Return the sum over u, t of factors[u] left[k, u, t] right[k, u, t]^T, shape (k, p, d).

    The product of two bfloat16 numbers, which have eight significant bits, is exactly the sum of
    two bfloat16 numbers. Two products in half precision therefore suffice (16).
    """
    scale_left = left.shape[3] <= right.shape[3]
    scaled, other = (left, right) if scale_left else (right, left)
    if multiplied_as_halves(left, right) and left.dtype == torch.bfloat16:
        short = (factors.view(torch.int32) & -(2**16)).view(torch.float32)
        parts = reversed(bfloat16_pair(scaled * short))
    else:
        parts, other = iter([scaled * factors]), other.to(factors.dtype)
    pairs = [(part, other) if scale_left else (other, part) for part in parts]
    flat = [(x.flatten(1, 2).mT, y.flatten(1, 2)) for x, y in pairs]
    return _product(flat, pieces(left.device).contraction)


def bfloat16_pair(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return two bfloat16 tensors whose sum is a float32 tensor of at most 16 significant bits."""
    high = values.bfloat16()
    return high, (values - high).bfloat16()


def formed_without(values: Tensor, keep: Tensor) -> Tensor:
    """Return formed gradients, shape (u, n), with zeros for the units that ``keep`` excludes."""
    return values.where(keep.unsqueeze(1), 0)


def formed_weighted_sum(values: Tensor, factors: Tensor) -> Tensor:
    """Return the sum over i of factors[i] values[i], shape (n,), float32 or float64 (20)."""
    values = widened(values)
    return rounded_down(factors, values.dtype) @ values
