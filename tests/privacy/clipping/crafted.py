"""Random records that are made to exceed a clipping norm, and exact norms of what is added.

A record's operands are made so that rounding hides its gradient: terms that cancel, sums that
round the same way at each addition, magnitudes from 1e-45 to 1e18. Exact norms use no sums in
floating point: products of float32 numbers are exact in float64, and ``math.fsum`` adds them with
one rounding; products of float64 numbers are fractions.
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import torch
from torch import Tensor

from dpft.privacy.clipping.products import Lookup, Outer

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TIE = {torch.float32: 2.0**12, torch.float64: 2.0**26}
"""A number whose square plus 1 is a tie between two numbers of the dtype."""


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _cancelling(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Positions in pairs of opposite signs that differ by a few units in the last place."""
    values = _normal(shape, dtype, generator)
    values[1::2] = -values[: len(values) // 2 * 2 : 2]
    return values * (1 + torch.finfo(dtype).eps * torch.randint(-3, 4, shape, generator=generator))


def _rounding_down(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """One large number and ones: each square is a tie that is rounded down, to the even number."""
    values = torch.ones(shape, dtype=torch.float64)
    values[..., 0] = TIE.get(dtype, 2.0**12)
    return values


def _rounding_up(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """One large position and then small ones, whose sums are rounded up at each addition."""
    values = torch.full(shape, 1 + 2.0**-7, dtype=torch.float64)
    values[:1] = {torch.float64: 2.0**53, torch.float16: 2.0**12}.get(dtype, 2.0**24)
    return values


def _of_all_magnitudes(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Positions of magnitudes between 1e-18 and 1e18."""
    exponents = torch.rand((shape[0], 1), generator=generator, dtype=torch.float64) * 36 - 18
    return _normal(shape, dtype, generator) * 10**exponents


def _denormal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Numbers around the least normal number of float32."""
    exponents = torch.rand(shape, generator=generator, dtype=torch.float64) * 12 - 45
    return _normal(shape, dtype, generator) * 10**exponents


def _underflowing(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Numbers whose squares the dtype takes for 0."""
    return _normal(shape, dtype, generator) * (1e-170 if dtype == torch.float64 else 1e-25)


def _sparse(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Positions most of which are zero, such as padding."""
    return _normal(shape, dtype, generator) * (torch.rand((shape[0], 1), generator=generator) < 0.3)


MAKERS: tuple[Callable[[tuple[int, ...], torch.dtype, torch.Generator], Tensor], ...] = (
    _normal, _cancelling, _rounding_down, _rounding_up, _of_all_magnitudes, _denormal,
    _underflowing, _sparse,
)  # fmt: skip


def _choice(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(0, count, (), generator=generator))


def crafted(
    units: int, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Return operands of shape (units, *shape), each unit's made in another way.

    Args:
        units: Number of units.
        shape: Positions and width.
        dtype: Dtype of the operands; what it cannot hold is infinite, or zero.
        generator: Source of all choices.
    """
    records = []
    for _ in range(units):
        scale = 10.0 ** (36 * float(torch.rand((), generator=generator)) - 18)
        record = MAKERS[_choice(len(MAKERS), generator)](shape, dtype, generator)
        records.append(record * (scale if _choice(3, generator) == 0 else 1.0))
    return torch.stack(records).to(dtype)


def crafted_sizes(generator: torch.Generator) -> tuple[int, int, int, int]:
    """Return units, positions, outputs and inputs, mostly few; sometimes one is long."""
    sizes = [1 + _choice(most, generator) for most in (4, 8, 8, 8)]
    if _choice(6, generator) == 0:
        sizes[1 + _choice(3, generator)] = 520 + _choice(600, generator)
        sizes[1:] = [min(size, 4) if size < 500 else size for size in sizes[1:]]
    return sizes[0], sizes[1], sizes[2], sizes[3]


def crafted_outer(
    units: int,
    positions: int,
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Outer:
    """Return a linear layer's use; inputs may repeat the output gradients, so that both cancel."""
    left = crafted(units, (positions, outputs), dtype, generator)
    right = crafted(units, (positions, inputs), dtype, generator)
    kind = _choice(6, generator)
    if kind < 2:  # constant inputs: the output gradients cancel in the sum
        right = right[:, :1].expand(-1, positions, -1).contiguous()
    elif kind == 2:  # only one of two Gram matrices underflows
        left, right = (left.double() * 1e-25).to(dtype), (right.double() * 1e16).to(dtype)
    return Outer(left, right)


def crafted_lookup(
    units: int,
    positions: int,
    count: int,
    width: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Lookup:
    """Return an embedding's use in which rows occur repeatedly."""
    ids = torch.randint(0, count, (units, positions), generator=generator)
    return Lookup(ids, crafted(units, (positions, width), dtype, generator), count)


def _total(terms: Iterable[tuple[float, float]], exact: bool) -> float:
    """Return the sum of products, with one rounding."""
    if exact:
        return float(sum((Fraction(x) * Fraction(y) for x, y in terms), Fraction(0)))
    return math.fsum(x * y for x, y in terms)


def exact_outer(left: Tensor, right: Tensor) -> list[float]:
    """Return the entries of the sum over t of left[t] right[t]^T, of (t, p) and (t, d)."""
    exact = torch.float64 in (left.dtype, right.dtype)
    lefts, rights = left.double().t().tolist(), right.double().t().tolist()
    return [_total(zip(x, y, strict=True), exact) for x in lefts for y in rights]


def exact_lookup(use: Lookup, unit: int) -> list[float]:
    """Return the entries of one unit's gradient of an embedding."""
    entries = []
    for row in range(use.count):
        chosen = use.values[unit][use.ids[unit] == row].double()
        entries += [math.fsum(column) for column in chosen.t().tolist()]
    return entries


def norm(entries: Iterable[float]) -> float:
    """Return the root of the sum of squares, with a relative error below 1e-15."""
    entries = list(entries)
    largest = max(map(abs, entries), default=0.0)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    exponent = math.frexp(largest)[1]  # squares neither overflow nor underflow
    return math.ldexp(
        math.sqrt(math.fsum(math.ldexp(x, -exponent) ** 2 for x in entries)), exponent
    )
