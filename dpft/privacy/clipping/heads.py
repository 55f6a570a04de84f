"""Recorded calls of a vocabulary head, whose output gradient (b, t, vocabulary) is never copied.

It is by far the largest tensor of a step. Where it exists (``WideUse``), positions whose label is
ignored have an all-zero row in it: they are left out of the norm and of the contraction, and what
must be copied (rows picked out, half precision made float32) is copied a block of the vocabulary
at a time.

Where a fused linear cross-entropy gives losses, the logits never exist whole (``RecomputedHead``).
The output gradient of example i is its residuals, softmax minus one-hot, times one number: what the
example's loss is multiplied by. So the squared norms of residuals times hidden states are taken in
the forward pass, chunk by chunk, and scaled in the backward pass; the weighted sum computes the
residuals again. The norm is taken of the numbers that are added: what is computed again goes
through the same chunks (one kernel, one shape), and its losses must have the bits that they had.
What a tied weight's cross term needs of the residuals is gathered from the chunks of the forward
pass: a product of fewer columns would round otherwise, and where two large logits tie, rounding
decides the softmax.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import torch
from torch import Tensor

from dpft.devices import sent
from dpft.errors import RunError
from dpft.head_losses import Chunk, Targets, add_weight_gradient, chunks
from dpft.privacy.clipping.choices import ProductShape, ghost_is_cheaper
from dpft.privacy.clipping.squares import (
    LONGEST,
    Squares,
    as_factor,
    formed_squares,
    ghost_squares,
    gram_squares,
    in_norm_dtype,
    is_same_tensor,
    lengths,
    product,
    stays_half,
    weighted_product,
)
from dpft.privacy.clipping.uses import SMALL, OuterProduct, RecomputedUse, Use

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
    return Squares.joined(_squares(*pair) for pair in pairs)


def _norm(matrix: Tensor) -> Tensor:
    # Row by row first: one chain of a million float32 additions would lose digits.
    norm: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(matrix, dim=1))
    return norm


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))


@dataclass
class SeenChunks:
    """What is kept of the residuals of a forward pass, whose chunks are seen as they come.

    Attributes:
        looked_up: The token ids, (b, s) each, at which an embedding of the same weight was looked
            up; residuals at these tokens are kept.
        losses: Cross-entropies of each chunk's positions.
        staying: The first chunks, whose residuals are kept whole.
    """

    looked_up: Sequence[Tensor] = ()
    losses: list[Tensor] = field(default_factory=list)
    staying: list[Chunk] = field(default_factory=list)
    _squares: list[tuple[tuple[int, int], Squares]] = field(default_factory=list)
    _at_tokens: list[Tensor] = field(default_factory=list)

    def see(self, chunk: Chunk, targets: Targets, size: torch.Size) -> None:
        """Takes a chunk of whole examples.

        Args:
            chunk: Its residuals will be overwritten, unless it stays.
            targets: Of the batch.
            size: Of the batch's labels, (b, t).
        """
        first, last = chunk.examples
        squares = squares_of_examples(chunk.residuals, chunk.inputs, targets.counts[first:last])
        self._squares.append((chunk.examples, squares))
        self.losses.append(chunk.losses)
        if chunk.stays:
            self.staying.append(chunk)
        if not self._at_tokens:
            self._at_tokens = [
                chunk.residuals.new_zeros(*size, ids.shape[1]) for ids in self.looked_up
            ]
        start, stop = chunk.span
        places, examples = targets.places[start:stop], targets.examples[start:stop]
        for ids, kept in zip(self.looked_up, self._at_tokens, strict=True):
            found = chunk.residuals.gather(1, ids.index_select(0, examples))
            kept.flatten(0, 1).index_copy_(0, places, found)

    def squares(self, count: int, like: Tensor) -> Squares:
        """Returns those of all examples, 0 where one has no position, shape (count,)."""
        values, terms = (torch.zeros(count, dtype=like.dtype, device=like.device) for _ in range(2))
        for (first, last), squares in self._squares:
            values[first:last], terms[first:last] = squares.values, squares.terms
        return Squares(values, terms)

    def at_tokens(self, ids: Tensor) -> Tensor | None:
        """Returns the residuals at some tokens, (b, t, s) for ids (b, s); None: not kept.

        Several look-ups may be joined in ``ids``, in any order.
        """
        pairs = list(zip(self.looked_up, self._at_tokens, strict=False))
        for looked_up, kept in pairs:
            if is_same_tensor(looked_up, ids):
                return kept
        parts: list[Tensor] = []
        start = 0
        while start < ids.shape[1]:
            for looked_up, kept in pairs:
                stop = start + looked_up.shape[1]
                if stop > start and torch.equal(ids[:, start:stop], looked_up):
                    parts.append(kept)
                    start = stop
                    break
            else:
                return None
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2) if parts else None


@dataclass(frozen=True)
class HeadProduct:
    """What the residuals of a batch are computed from, and what was seen of them.

    Attributes:
        weight: The head's, (v, d).
        targets: Of the batch.
        seen: What the forward pass kept.
    """

    weight: Tensor
    targets: Targets
    seen: SeenChunks


@dataclass(frozen=True)
class RecomputedHead(RecomputedUse):
    """Gradient [i] = ``factors[i]`` times sum over t of ``residuals[i, t] right[i, t]^T``.

    Attributes:
        factors: What each example's residuals are multiplied by, (b,).
        right: Hidden states, (b, t, d).
        product: What the residuals follow from.
        kept: Which examples take part, (b,); the others may hold anything. None: all.
    """

    factors: Tensor
    right: Tensor
    product: HeadProduct
    kept: Tensor | None = None

    def squares(self) -> Squares:
        """Returns the squared gradient norms, from those of the forward pass.

        They are no numbers where hidden states times factors are too large for float32 to add up.
        """
        seen = self.product.seen.squares(len(self.factors), self.factors)
        squares = seen.times(self.factors)
        longest = lengths(self.right).sum(1).double() * self.factors.double().abs()
        return Squares(squares.values, squares.terms.masked_fill(~(longest <= LONGEST), torch.nan))

    def cross_term(self, ids: Tensor, inner: Callable[[Tensor, Tensor], Squares]) -> Squares:
        """Returns the inner products with the gradients of an embedding of the same weight."""
        at_tokens = self.product.seen.at_tokens(ids)
        if at_tokens is None:
            at_tokens = self._computed_at_tokens(ids)
        return inner(at_tokens, in_norm_dtype(self.right)).times(self.factors, squared=False)

    def outer(self, examples: Tensor | None = None) -> OuterProduct:
        """Returns the use of some examples, or of all, with residuals as output gradients.

        The factors are in ``right``, as they are in what is added: residuals are at most 1.
        """
        return self._outer(self.right.dtype, examples)

    def double(self, examples: Tensor) -> OuterProduct:
        """Returns the use of some examples in float64."""
        return self._outer(torch.float64, examples)

    def _outer(self, dtype: torch.dtype, examples: Tensor | None) -> OuterProduct:
        count, steps, _ = self.right.shape
        wanted = torch.arange(count) if examples is None else examples.cpu()
        place = {example: number for number, example in enumerate(wanted.tolist())}
        dtype = torch.promote_types(dtype, self.factors.dtype)
        left = self.factors.new_zeros(len(wanted), steps, len(self.product.weight), dtype=dtype)
        for example, positions, residuals in self._examples():
            if example in place:
                left[place[example]].index_copy_(0, positions, residuals.to(dtype))
        chosen = wanted.to(self.right.device)
        scale = self.factors.index_select(0, chosen).to(dtype).view(-1, 1, 1)
        return OuterProduct(left, self.right.index_select(0, chosen).to(dtype) * scale)

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (v, d)."""
        if total.numel() <= SMALL and total.dtype != torch.float64:
            exact = torch.zeros_like(total, dtype=torch.float64)
            self.add_weighted_sum(factors, exact)
            total.add_(exact.to(total.dtype))
            return
        # float64: of a small and a large factor, float32 may lose the product.
        scale = self.factors.double() * factors.double()
        if self.kept is not None:
            scale = scale.masked_fill(~self.kept, 0)
        targets = self.product.targets
        add_weight_gradient(self._chunks(), targets, scale, total, dtype=total.dtype)

    def keep(self, mask: Tensor) -> "RecomputedHead":
        """Returns the use without the examples where ``mask`` is False."""
        return replace(self, kept=mask if self.kept is None else self.kept & mask)

    @property
    def kept_bytes(self) -> int:
        """What of it is held beside its inputs."""
        return sum(chunk.residuals.nbytes for chunk in self.product.seen.staying)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return len(self.product.weight), self.right.shape[2]

    def _chunks(self) -> Iterator[Chunk]:
        """Yields the chunks of the forward pass again, zeros where an example takes no part."""
        seen, targets = self.product.seen, self.product.targets
        again = chunks(
            self.right, self.product.weight, targets, whole_examples=True, known=seen.staying
        )
        same = []
        for chunk, losses in zip(again, seen.losses, strict=True):
            same.append((_bits(chunk.losses) == _bits(losses)).all())
            if self.kept is not None:
                start, stop = chunk.span
                left_out = ~self.kept.index_select(0, targets.examples[start:stop])
                inputs, residuals = (
                    each.masked_fill(left_out.unsqueeze(1), 0)
                    for each in (chunk.inputs, chunk.residuals)
                )
                chunk = replace(chunk, inputs=inputs, residuals=residuals)
            yield chunk
        # One look for all chunks, on a device.
        if same and not bool(torch.stack(same).all()):
            raise RunError(
                "the head's losses came out otherwise when they were computed again for the "
                "weighted sum, so the norms are not those of what would be added: its weight or "
                "its input was changed meanwhile, or the device does not repeat its products; do "
                "without `fuse_head(model)`."
            )

    def _examples(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yields each example's number, positions, and residuals, which do not stay."""
        targets, steps = self.product.targets, self.right.shape[1]
        for chunk in self._chunks():
            start = chunk.span[0]
            first, last = chunk.examples
            for example, count in zip(range(first, last), targets.counts[first:last], strict=True):
                stop = start + count
                positions = targets.places[start:stop] - example * steps
                offset = start - chunk.span[0]
                yield example, positions, chunk.residuals[offset : offset + count]
                start = stop

    def _computed_at_tokens(self, ids: Tensor) -> Tensor:
        """Returns the residuals at tokens that the forward pass did not know of, (b, t, s)."""
        found = self.factors.new_zeros(*self.right.shape[:2], ids.shape[1])
        for example, positions, residuals in self._examples():
            wanted = ids[example].expand(len(residuals), -1)
            found[example].index_copy_(0, positions, residuals.gather(1, wanted))
        return found


def _bits(numbers: Tensor) -> Tensor:
    """Returns floating point numbers as whole numbers, so that one that is none equals itself."""
    return numbers.view(torch.int64 if numbers.dtype == torch.float64 else torch.int32)
