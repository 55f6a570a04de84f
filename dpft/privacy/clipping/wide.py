"""The head's output gradient, (b, t, vocabulary): by far the largest tensor, so never copied.

Positions whose label is ignored have an all-zero row in it. They are left out of the norm and of
the contraction, and what must be copied (rows picked out, half precision made float32) is copied
a block of the vocabulary at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from dpft.privacy.clipping.blocks import sent
from dpft.privacy.clipping.costs import ProductShape, ghost_is_cheaper
from dpft.privacy.clipping.squares import (
    Squares,
    formed_squares,
    ghost_squares,
    gram_squares,
    in_norm_dtype,
)
from dpft.privacy.clipping.uses import OuterUse, Use

WIDE_ROWS = 4096
"""A weight of at least this many rows is a vocabulary's."""
SMALL_WIDE_ROWS = 1024
"""So is one of at least this many, if they are ``WIDE_SHARE`` times its columns or more, which are
more than ``RANKS``: no other layer widens so much."""
RANKS = 64
"""Columns of low-rank adapters, which widen as much."""
WIDE_SHARE = 16
BLOCK_ROWS = 4096
"""Rows of the weight that are copied at a time."""
PROBE = 64
"""First entries of a position by which most positions that count are found."""
COPIED_AT_A_TIME = 2**22
"""Numbers of it that are copied at a time where its norm is taken (16 MB)."""
WORTH_DROPPING = 0.9
"""Share of positions left below which picking them out costs less than multiplying by zeros."""


Span = tuple[int, int]
"""First and past-last position of an example; equal for none."""


@dataclass(frozen=True)
class WideUse(OuterUse):
    """An ``OuterUse`` of many rows, with the positions of each example that count.

    Attributes:
        spans: First and past-last position of each example with a gradient; equal for none.
        dropped: Whether rows outside the spans may be other than zero, and must not be read.
        doubt: Whether there is anything but zeros outside the spans after all, a number that is
            not yet looked at; None where it is known that there is not.
    """

    spans: tuple[Span, ...]
    dropped: bool = False
    doubt: Tensor | None = None

    def squares(self) -> Squares:
        """Returns the squared gradient norms from the positions that count."""
        start, end = self._whole_span
        if self._are_alike and end > start:
            return _squares_together(self.left[:, start:end], self.right[:, start:end])
        pairs = zip(self.left, self.right, self.spans, strict=True)
        parts = [_squares(left[s:e], right[s:e]) for left, right, (s, e) in pairs]
        return Squares(torch.cat([p.values for p in parts]), torch.cat([p.terms for p in parts]))

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

    def double(self, examples: Tensor) -> OuterUse:
        """Returns the use of some examples in float64, the positions that count."""
        spans = [self.spans[example] for example in examples.tolist()]
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        left, right = self.left[:, start:end], self.right[:, start:end]
        return OuterUse(left[examples].double(), right[examples].double())

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        if self._is_whole and self.left.dtype == total.dtype:
            super().add_weighted_sum(factors, total)
            return
        for block, product in self._products(factors):
            total[block].addmm_(*product)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Returns sum over i of ``factors[i] * gradient[i]``, shape (rows, columns)."""
        if self._is_whole and self.left.dtype == self.dtype:
            return super().weighted_sum(factors)
        total = self.left.new_empty(*self.parameter_shape, dtype=self.dtype)
        for block, product in self._products(factors):
            torch.mm(*product, out=total[block])
        return total

    @property
    def _is_whole(self) -> bool:
        """Whether so many positions count that none is left out of a product."""
        count, steps, _ = self.left.shape
        return not self.dropped and self._counted > WORTH_DROPPING * count * steps

    def _products(self, factors: Tensor) -> Iterator[tuple[slice, tuple[Tensor, Tensor]]]:
        """Yields the matrices whose product is the weighted sum, some rows of it at a time."""
        steps, dtype = self.left.shape[1], self.dtype
        counted = [i * steps + t for i, span in enumerate(self.spans) for t in range(*span)]
        places = sent(counted, torch.long, self.left.device)
        left = self.left.flatten(0, 1)
        right = self.right.flatten(0, 1).index_select(0, places).to(dtype)
        weights = factors.to(dtype).index_select(0, places // steps)
        right = right * weights.unsqueeze(1)
        for block in _blocks(left.shape[1]):
            yield block, (left[:, block].index_select(0, places).to(dtype).t(), right)

    def keep(self, mask: Tensor) -> "WideUse":
        """Returns the use without the examples where ``mask`` is False; copies nothing."""
        spans = [
            span if kept else (0, 0) for span, kept in zip(self.spans, mask.tolist(), strict=True)
        ]
        return WideUse(self.left, self.right, tuple(spans), dropped=True)


def widen(use: Use) -> Use:
    """Returns a use of a vocabulary's weight as a ``WideUse``, any other use as it is."""
    if not is_wide(use):
        return use
    guess = widen_at_a_glance(use)
    assert isinstance(guess, WideUse)
    if guess.doubt is None or not bool(guess.doubt):
        return replace(guess, doubt=None)
    counted = torch.zeros(use.left.shape[:2], dtype=torch.bool, device=use.left.device)
    for block in _blocks(use.left.shape[2]):
        counted |= (use.left[:, :, block] != 0).any(2)
    return WideUse(use.left, use.right, _spans(counted))


def widen_at_a_glance(use: Use, spans: tuple[Span, ...] | None = None) -> Use:
    """Returns a use as ``widen`` does, from one look at a few numbers of each position.

    A row that counts shows in its first entries as a rule. Whether one outside the spans does not
    is found out too, but not looked at: ``doubt`` says so.

    Args:
        use: The use.
        spans: Where they are known from an earlier pass.
    """
    if not is_wide(use):
        return use
    if spans is None:
        spans = _spans((use.left[:, :, :PROBE] != 0).any(2))
        return WideUse(use.left, use.right, spans, doubt=_doubt(use.left, spans))
    return WideUse(use.left, use.right, spans)


def certain(use: Use) -> Use:
    """Returns a use whose spans leave no doubt."""
    if isinstance(use, WideUse) and use.doubt is not None:
        return widen(OuterUse(use.left, use.right))
    return use


def is_wide(use: Use) -> TypeGuard[OuterUse]:
    """Whether this is the use of a vocabulary's weight, as it was recorded."""
    if not isinstance(use, OuterUse) or isinstance(use, WideUse):
        return False
    rows, columns = use.left.shape[2], use.right.shape[2]
    if rows >= max(WIDE_ROWS, columns + 1):
        return True
    return columns > RANKS and rows >= max(SMALL_WIDE_ROWS, WIDE_SHARE * columns)


def _doubt(left: Tensor, spans: Sequence[Span]) -> Tensor | None:
    """Returns how many entries outside the spans are not zero, up to a few; NaN is not zero."""
    steps = left.shape[1]
    outside = [
        i * steps + t
        for i, (start, end) in enumerate(spans)
        for t in (*range(start), *range(end, steps))
    ]
    if not outside:
        return None
    places = sent(outside, torch.long, left.device)
    rows, width = left.flatten(0, 1), max(BLOCK_ROWS, COPIED_AT_A_TIME // len(outside))
    blocks = (block.index_select(0, places) for block in rows.split(width, 1))
    return torch.stack([(block != 0).any() for block in blocks]).any()


def _spans(counted: Tensor) -> tuple[Span, ...]:
    """Returns the span of each example's positions that count, (b, t); one look at the device."""
    return tuple(_span(row) for row in counted.tolist())


def _span(counts: list[bool]) -> tuple[int, int]:
    places = [place for place, counted in enumerate(counts) if counted]
    return (places[0], places[-1] + 1) if places else (0, 0)


def _squares(left: Tensor, right: Tensor) -> Squares:
    """Returns the squared norm of ``left^T right`` for (t, rows) and (t, columns)."""
    right = in_norm_dtype(right)
    shape = ProductShape(1, left.shape[0], left.shape[1], right.shape[1])
    if ghost_is_cheaper(shape):
        return _squares_together(left[None], right[None])
    products = (left[:, block].to(right.dtype).t() @ right for block in _blocks(shape.rows))
    square = torch.stack([_norm(product) for product in products]).square().sum()[None]
    return formed_squares(square, OuterUse(left[None], right[None]).norm_bound())


def _squares_together(left: Tensor, right: Tensor) -> Squares:
    """Returns the ghost norms of (b, t, rows) and (b, t, columns)."""
    right = in_norm_dtype(right)
    if left.dtype == right.dtype:
        return ghost_squares(left, right)
    count, steps, rows = left.shape
    gram = right.new_zeros(count, steps, steps)
    for block in left.split(max(1, COPIED_AT_A_TIME // max(1, count * steps)), 2):
        part = block.to(right.dtype)
        gram.baddbmm_(part, part.transpose(1, 2))
    return gram_squares(gram, torch.bmm(right, right.transpose(1, 2)), rows, right.shape[2])


def squares_of_examples(left: Tensor, right: Tensor, counts: Sequence[int]) -> Squares:
    """Returns the squared norms of examples that stand end to end.

    Args:
        left: Output gradients, (n, rows).
        right: Inputs, (n, columns).
        counts: How many positions each example has; they sum to n.
    """
    shape = ProductShape(len(counts), counts[0], left.shape[1], right.shape[1])
    if len(set(counts)) == 1 and ghost_is_cheaper(shape):
        together = (each.unflatten(0, (len(counts), counts[0])) for each in (left, right))
        return _squares_together(*together)
    pairs = zip(left.split(list(counts)), right.split(list(counts)), strict=True)
    parts = [_squares(*pair) for pair in pairs]
    return Squares(torch.cat([p.values for p in parts]), torch.cat([p.terms for p in parts]))


def _norm(matrix: Tensor) -> Tensor:
    # Row by row first: one chain of a million float32 additions would lose digits.
    norm: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(matrix, dim=1))
    return norm


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))
