"""The use of a vocabulary head's weight whose logits never exist whole (``fused_head``).

The output gradient of example i is its residuals, softmax minus one-hot, times one number: what the
example's loss is multiplied by. So the squared norms of residuals are taken in the forward pass,
chunk by chunk, and scaled in the backward pass; the weighted sum computes the residuals again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpft.head_losses import add_weight_gradient
from dpft.privacy.clipping.lazy import LazyUse
from dpft.privacy.clipping.squares import Squares, in_norm_dtype, lengths
from dpft.privacy.clipping.uses import SMALL, OuterUse
from dpft.privacy.clipping.wide import squares_of_examples
from dpft.vocabulary_chunks import Chunk, Targets, chunks


class SeenSquares:
    """The squared norms of each example's residuals times its inputs, from chunks as they come."""

    def __init__(self) -> None:
        """Starts with none."""
        self._parts: list[tuple[tuple[int, int], Squares]] = []
        self._logarithms: list[Tensor] = []
        self.stayed: list[Chunk] = []
        """The first chunks, whose residuals are kept."""

    def see(self, chunk: Chunk, counts: Sequence[int]) -> None:
        """Takes a chunk.

        Args:
            chunk: Of whole examples.
            counts: How many positions each example of the batch has.
        """
        first, last = chunk.examples
        squares = squares_of_examples(chunk.residuals, chunk.inputs, counts[first:last])
        self._parts.append((chunk.examples, squares))
        self._logarithms.append(chunk.logarithms)
        if chunk.stays:
            self.stayed.append(chunk)

    def squares(self, count: int, like: Tensor) -> Squares:
        """Returns those of all examples, 0 where one has no position, shape (count,)."""
        values, terms = (torch.zeros(count, dtype=like.dtype, device=like.device) for _ in range(2))
        for (first, last), squares in self._parts:
            values[first:last], terms[first:last] = squares.values, squares.terms
        return Squares(values, terms)

    def logarithms(self, hidden: Tensor, targets: Targets, like: Tensor) -> Tensor:
        """Returns the logarithms of the sums of exponentials, infinite where nothing counts."""
        whole = torch.full(hidden.shape[:2], torch.inf, dtype=like.dtype, device=like.device)
        if self._logarithms:
            whole.view(-1).index_copy_(0, targets.places, torch.cat(self._logarithms))
        return whole


@dataclass(frozen=True)
class HeadProduct:
    """What the residuals of a batch are computed from, and what was seen of them.

    Attributes:
        weight: The head's, (v, d).
        targets: Of the batch.
        squares: Squared norms of residuals times inputs, shape (b,).
        logarithms: Of the sums of exponentials, (b, t); infinite where nothing counts.
        known: The first chunks, whose residuals were kept.
        kept: Which examples count, (b,); None: all.
    """

    weight: Tensor
    targets: Targets
    squares: Squares
    logarithms: Tensor
    known: Sequence[Chunk] = ()
    kept: Tensor | None = None


@dataclass(frozen=True)
class HeadUse(LazyUse):
    """Gradient [i] = ``factors[i]`` times sum over t of ``residuals[i, t] right[i, t]^T``.

    Attributes:
        factors: What each example's residuals are multiplied by, (b,).
        right: Hidden states, (b, t, d).
        product: What the residuals follow from.
    """

    factors: Tensor
    right: Tensor
    product: HeadProduct

    def squares(self) -> Squares:
        """Returns the squared gradient norms, from those of the forward pass."""
        seen, scale = self.product.squares, self.factors.square()
        return Squares(seen.values * scale, seen.terms * scale)

    def outer(self, examples: Tensor | None = None) -> OuterUse:
        """Returns the use of some examples, or of all, with its output gradient."""
        count, steps, _ = self.right.shape
        wanted = torch.arange(count) if examples is None else examples.cpu()
        place = {example: number for number, example in enumerate(wanted.tolist())}
        left = self.factors.new_zeros(len(wanted), steps, len(self.product.weight))
        for example, positions, residuals in self._examples():
            if example in place:
                scaled = residuals * self.factors[example]
                left[place[example]].index_copy_(0, positions, scaled)
        return OuterUse(left, self.right.index_select(0, wanted.to(self.right.device)))

    def picked(self, ids: Tensor) -> Tensor:
        """Returns what residuals there are at some tokens, (b, t, s) for ids of shape (b, s)."""
        product, targets = self.product, self.product.targets
        if self.right.dtype != self.factors.dtype:
            return self._picked_anew(ids)
        rows = product.weight.detach()[ids].to(self.right.dtype)
        logits = torch.bmm(self.right, rows.transpose(1, 2))
        picked = logits.sub_(product.logarithms.unsqueeze(2)).exp_()
        labels = torch.full(self.right.shape[:2], -1, device=ids.device).view(-1)
        labels = labels.index_copy_(0, targets.places, targets.labels).view(-1, picked.shape[1])
        picked.sub_((labels.unsqueeze(2) == ids.unsqueeze(1)).to(picked.dtype))
        return picked.mul_(self.factors.view(-1, 1, 1))

    def norm_bound(self) -> Tensor:
        """Returns sum over t of ``|residuals[i, t]| |right[i, t]|`` times the factor, (b,)."""
        bounds = torch.zeros_like(self.factors)
        for example, positions, residuals in self._examples():
            inputs = self.right[example].index_select(0, positions)
            size = (lengths(residuals[None]) * lengths(inputs[None])).sum()
            bounds[example] = size * self.factors[example].abs()
        return bounds

    def add_weighted_sum(self, factors: Tensor, total: Tensor) -> None:
        """Adds sum over i of ``factors[i] * gradient[i]`` to ``total``, (v, d)."""
        if total.numel() <= SMALL and total.dtype != torch.float64:
            exact = torch.zeros_like(total, dtype=torch.float64)
            self.add_weighted_sum(factors, exact)
            total.add_(exact.to(total.dtype))
            return
        product = self.product
        scaled = self.factors * factors.to(self.factors.dtype)
        add_weight_gradient(
            self.right,
            product.weight,
            product.targets,
            scaled if product.kept is None else scaled.masked_fill(~product.kept, 0),
            total,
            dtype=total.dtype,
            whole_examples=True,
            kept=product.kept,
            known=product.known,
        )

    def keep(self, mask: Tensor) -> "HeadUse":
        """Returns the use without the examples where ``mask`` is False."""
        return replace(self, product=replace(self.product, kept=mask))

    @property
    def kept_bytes(self) -> int:
        """What of it is held beside its inputs."""
        return sum(chunk.residuals.nbytes for chunk in self.product.known)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return len(self.product.weight), self.right.shape[2]

    def _examples(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yields each example's number, positions, and residuals, which do not stay."""
        targets, steps = self.product.targets, self.right.shape[1]
        known, weight = self.product.known, self.product.weight
        for chunk in chunks(self.right, weight, targets, whole_examples=True, known=known):
            start = chunk.span[0]
            first, last = chunk.examples
            for example, count in zip(range(first, last), targets.counts[first:last], strict=True):
                stop = start + count
                positions = targets.places[start:stop] - example * steps
                offset = start - chunk.span[0]
                yield example, positions, chunk.residuals[offset : offset + count]
                start = stop

    def _picked_anew(self, ids: Tensor) -> Tensor:
        """Returns what ``picked`` does where a product of fewer columns would round otherwise."""
        picked = self.factors.new_zeros(*self.right.shape[:2], ids.shape[1])
        for example, positions, residuals in self._examples():
            found = residuals.gather(1, ids[example].expand(len(residuals), -1))
            picked[example].index_copy_(0, positions, found * self.factors[example])
        return picked


def reported_use(
    seen: SeenSquares, hidden: Tensor, weight: Tensor, targets: Targets, factors: Tensor
) -> HeadUse:
    """Returns the use of a weight whose chunks were seen, once the factors are known."""
    like = in_norm_dtype(factors)
    product = HeadProduct(
        weight=weight,
        targets=targets,
        squares=seen.squares(len(hidden), like),
        logarithms=seen.logarithms(hidden, targets, like),
        known=tuple(seen.stayed),
    )
    return HeadUse(like, hidden, product)
