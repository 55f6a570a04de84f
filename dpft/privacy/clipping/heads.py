"""Recorded calls of a vocabulary head, whose output gradient (b, t, vocabulary) is never copied.

It is the largest tensor of a step. Positions with an ignored label have an all-zero row in it, so
``WideUse`` leaves them out of the norm and of the contraction. It copies one block of the
vocabulary at a time, to select rows or to convert half precision to float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from dpft.devices import sent
from dpft.privacy.clipping.choices import ProductShape, ghost_is_cheaper
from dpft.privacy.clipping.squares import (
    Squares,
    as_factor,
    formed_squares,
    ghost_squares,
    gram_squares,
    product,
    stays_half,
    weighted_product,
)
from dpft.privacy.clipping.uses import OuterProduct, Use

WIDE_ROWS = 4096
"""A weight of at least this many rows is a vocabulary's, if they are more than ``OF_LAYERS`` times
its columns: the layers of a block widen up to so much."""
OF_LAYERS = 4
SMALL_WIDE_ROWS = 1024
"""So is one of at least this many, if they are ``WIDE_SHARE`` times its columns or more, which are
more than ``RANKS``: no other layer widens so much."""
RANKS = 64
"""Columns of low-rank adapters, which widen as much."""
WIDE_SHARE = 16
BLOCK_ROWS = 4096
"""Rows of the weight that are copied at a time."""
COPIED_AT_A_TIME = 2**22
"""Numbers of it that are copied at a time where its norm is taken (16 MB)."""
WORTH_DROPPING = 0.9
"""Share of positions left below which picking them out costs less than multiplying by zeros."""


Span = tuple[int, int]
"""First and past-last position of an example; equal for none."""


@dataclass(frozen=True)
class WideUse(OuterProduct):
    """An ``OuterProduct`` of many rows, with the positions of each example that count.

    Attributes:
        spans: First and past-last position of each example with a gradient; equal for none.
        dropped: Whether rows outside the spans may be other than zero, and must not be read.
    """

    spans: tuple[Span, ...]
    dropped: bool = False

    def squares(self) -> Squares:
        """Returns the squared gradient norms from the positions that count."""
        start, end = self._whole_span
        if self._are_alike and end > start:
            return _squares_together(self.left[:, start:end], self.right[:, start:end])
        pairs = zip(self.left, self.right, self.spans, strict=True)
        return Squares.joined(_squares(left[s:e], right[s:e]) for left, right, (s, e) in pairs)

    @property
    def _whole_span(self) -> Span:
        """The positions from the first that counts in any example to the last."""
        counted = [span for span in self.spans if span[0] < span[1]] or [(0, 0)]
        return min(s for s, _ in counted), max(e for _, e in counted)

    @property
    def _are_alike(self) -> bool:
        """Whether nearly all positions count that do in some example, and taking all is cheap."""
        start, end = self._whole_span
        count, _, rows = self.left.shape
        shape = ProductShape(count, end - start, rows, self.right.shape[2])
        alike = WORTH_DROPPING * count * (end - start) <= self._counted
        return alike and not self.dropped and ghost_is_cheaper(shape)

    @property
    def _counted(self) -> int:
        return sum(end - start for start, end in self.spans)

    def double(self, examples: Tensor) -> OuterProduct:
        """Returns the use of some examples in float64, the positions that count."""
        spans = [self.spans[example] for example in examples.tolist()]
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        left, right = self.left[:, start:end], self.right[:, start:end]
        return OuterProduct(left[examples].double(), right[examples].double())

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        if self._is_whole and as_factor(self.left) is self.left:
            super().add_weighted_sum(factors, total)
            return
        for block, factored in self._blocks_by_position(factors.to(total.dtype)):
            weighted_product(*factored, total[block])

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, shape (rows, columns)."""
        if self._is_whole and as_factor(self.left) is self.left:
            return super().weighted_sum(factors)
        total = self.left.new_zeros(*self.parameter_shape, dtype=self.dtype)
        self.add_weighted_sum(factors, total)
        return total

    @property
    def _is_whole(self) -> bool:
        """Whether so many positions count that none is left out of a product."""
        count, steps, _ = self.left.shape
        return not self.dropped and self._counted > WORTH_DROPPING * count * steps

    def _blocks_by_position(
        self, factors: Tensor
    ) -> Iterator[tuple[slice, tuple[Tensor, Tensor, Tensor]]]:
        """Yields some rows of the weight at a time: output gradients, inputs, factors."""
        steps = self.left.shape[1]
        counted = [i * steps + t for i, span in enumerate(self.spans) for t in range(*span)]
        places = sent(counted, torch.long, self.left.device)
        left = self.left.flatten(0, 1)
        right = self.right.flatten(0, 1).index_select(0, places)
        weights = factors.index_select(0, places // steps)
        for block in _blocks(left.shape[1]):
            yield block, (left[:, block].index_select(0, places), right, weights)

    def keep(self, mask: Tensor) -> "WideUse":
        """Returns the use without the examples where ``mask`` is False; copies nothing."""
        spans = [
            span if kept else (0, 0) for span, kept in zip(self.spans, mask.tolist(), strict=True)
        ]
        return WideUse(self.left, self.right, tuple(spans), dropped=True)


def widen(use: Use, spans: tuple[Span, ...] | None = None) -> Use:
    """Returns a use of a vocabulary's weight as a ``WideUse``, any other use as it is.

    Args:
        use: As it was recorded.
        spans: The positions that count, where they are known.
    """
    if not is_wide(use):
        return use
    if spans is None:
        # Two reductions copy nothing; what is not a number shows in both.
        spans = _spans((use.left.amax(2) != 0) | (use.left.amin(2) != 0))
    return WideUse(use.left, use.right, spans)


def is_wide(use: Use) -> TypeGuard[OuterProduct]:
    """Whether this is the use of a vocabulary's weight, as it was recorded."""
    if not isinstance(use, OuterProduct) or isinstance(use, WideUse):
        return False
    rows, columns = use.left.shape[2], use.right.shape[2]
    if rows >= max(WIDE_ROWS, OF_LAYERS * columns + 1):
        return True
    return columns > RANKS and rows >= max(SMALL_WIDE_ROWS, WIDE_SHARE * columns)


def _spans(counted: Tensor) -> tuple[Span, ...]:
    """Returns the span of each example's positions that count, (b, t); one look at the device."""
    places = ([t for t, counts in enumerate(row) if counts] for row in counted.tolist())
    return tuple((found[0], found[-1] + 1) if found else (0, 0) for found in places)


def _squares(left: Tensor, right: Tensor) -> Squares:
    """Returns the squared norm of ``left^T right`` for (t, rows) and (t, columns)."""
    shape = ProductShape(1, left.shape[0], left.shape[1], right.shape[1])
    if ghost_is_cheaper(shape):
        return _squares_together(left[None], right[None])
    right = as_factor(right)
    formed = (product(left[:, block].t(), right) for block in _blocks(shape.rows))
    square = torch.stack([_norm(rows) for rows in formed]).square().sum()[None]
    squares = formed_squares(square, OuterProduct(left[None], right[None]).norm_bound())
    return squares.raised() if stays_half(left) else squares


def _squares_together(left: Tensor, right: Tensor) -> Squares:
    """Returns the ghost norms of (b, t, rows) and (b, t, columns)."""
    if as_factor(left) is left:
        return ghost_squares(left, right)
    count, steps, rows = left.shape
    of_right = product(right, right.transpose(1, 2))
    gram = torch.zeros_like(of_right)
    for block in left.split(max(1, COPIED_AT_A_TIME // max(1, count * steps)), 2):
        part = block.to(gram.dtype)
        gram.baddbmm_(part, part.transpose(1, 2))
    return gram_squares(gram, of_right, rows, right.shape[2])


def _norm(matrix: Tensor) -> Tensor:
    # Row by row first: one chain of a million float32 additions would lose digits.
    norm: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(matrix, dim=1))
    return norm


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))
