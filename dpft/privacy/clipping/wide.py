"""The head's output gradient, (b, t, vocabulary): by far the largest tensor, so never copied.

Positions whose label is ignored have an all-zero row in it. They are left out of the norm and of
the contraction, and what must be copied (rows picked out, half precision made float32) is copied
a block of the vocabulary at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

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
BLOCK_ROWS = 4096
"""Rows of the weight that are copied at a time."""
PROBE = 64
"""First entries of a position by which most positions that count are found."""
WORTH_DROPPING = 0.9
"""Share of positions left below which picking them out costs less than multiplying by zeros."""


@dataclass(frozen=True)
class WideUse(OuterUse):
    """An ``OuterUse`` of many rows, with the positions of each example that count.

    Attributes:
        spans: First and past-last position of each example with a gradient; equal for none.
        dropped: Whether rows outside the spans may be other than zero, and must not be read.
    """

    spans: tuple[tuple[int, int], ...]
    dropped: bool = False

    def squares(self) -> Squares:
        """Returns the squared gradient norms from the positions that count."""
        pairs = zip(self.left, self.right, self.spans, strict=True)
        parts = [_squares(left[s:e], right[s:e]) for left, right, (s, e) in pairs]
        return Squares(torch.cat([p.values for p in parts]), torch.cat([p.terms for p in parts]))

    def double(self, examples: Tensor) -> OuterUse:
        """Returns the use of some examples in float64, the positions that count."""
        spans = [self.spans[example] for example in examples.tolist()]
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        left, right = self.left[:, start:end], self.right[:, start:end]
        return OuterUse(left[examples].double(), right[examples].double())

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (rows, columns)."""
        steps = self.left.shape[1]
        counted = sum(end - start for start, end in self.spans)
        whole = not self.dropped and counted > WORTH_DROPPING * self.left.shape[0] * steps
        if whole and self.left.dtype == total.dtype:
            super().add_weighted_sum(factors, total)
            return
        places = torch.cat(
            [torch.arange(i * steps + s, i * steps + e) for i, (s, e) in enumerate(self.spans)]
        ).to(self.left.device)
        left = self.left.flatten(0, 1)
        right = self.right.flatten(0, 1).index_select(0, places).to(total.dtype)
        right = right * factors.repeat_interleave(steps).index_select(0, places)[:, None]
        for block in _blocks(left.shape[1]):
            picked = left[:, block].index_select(0, places).to(total.dtype)
            total[block].addmm_(picked.t(), right)

    def keep(self, mask: Tensor) -> "WideUse":
        """Returns the use without the examples where ``mask`` is False; copies nothing."""
        spans = [
            span if kept else (0, 0) for span, kept in zip(self.spans, mask.tolist(), strict=True)
        ]
        return WideUse(self.left, self.right, tuple(spans), dropped=True)


def widen(use: Use) -> Use:
    """Returns a use of a vocabulary's weight as a ``WideUse``, any other use as it is."""
    if not isinstance(use, OuterUse) or isinstance(use, WideUse):
        return use
    if use.left.shape[2] < WIDE_ROWS or use.left.shape[2] <= use.right.shape[2]:
        return use
    return WideUse(use.left, use.right, tuple(_span(row) for row in _nonzero_rows(use.left)))


def _nonzero_rows(left: Tensor) -> list[list[bool]]:
    """Returns whether each position has an entry other than zero, (b, t); NaN is other than zero.

    A row that counts shows in its first entries as a rule; only the others are read whole.
    """
    counted = (left[:, :, :PROBE] != 0).any(2)
    flat, rows = counted.view(-1), left.flatten(0, 1)
    for block in _blocks(left.shape[2]):
        doubtful = (~flat).nonzero()[:, 0]
        if len(doubtful) == 0:
            break
        flat[doubtful] = (rows[:, block].index_select(0, doubtful) != 0).any(1)
    return counted.tolist()


def _span(counts: list[bool]) -> tuple[int, int]:
    places = [place for place, counted in enumerate(counts) if counted]
    return (places[0], places[-1] + 1) if places else (0, 0)


def _squares(left: Tensor, right: Tensor) -> Squares:
    """Returns the squared norm of ``left^T right`` for (t, rows) and (t, columns)."""
    right = in_norm_dtype(right)
    shape = ProductShape(1, left.shape[0], left.shape[1], right.shape[1])
    if not ghost_is_cheaper(shape):
        products = (left[:, block].to(right.dtype).t() @ right for block in _blocks(shape.rows))
        square = torch.stack([_norm(product) for product in products]).square().sum()[None]
        return formed_squares(square, OuterUse(left[None], right[None]).norm_bound())
    if left.dtype == right.dtype:
        return ghost_squares(left[None], right[None])
    gram = right.new_zeros(shape.steps, shape.steps)
    for block in _blocks(shape.rows):
        part = left[:, block].to(right.dtype)
        gram.addmm_(part, part.t())
    return gram_squares(gram[None], (right @ right.t())[None], shape.rows, shape.columns)


def _norm(matrix: Tensor) -> Tensor:
    # Row by row first: one chain of a million float32 additions would lose digits.
    norm: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(matrix, dim=1))
    return norm


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))
