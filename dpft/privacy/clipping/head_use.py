"""The use of a vocabulary head's weight whose logits never exist whole (``fused_head``).

The output gradient of example i is its residuals, softmax minus one-hot, times one number: what the
example's loss is multiplied by. So the squared norms of residuals times hidden states are taken in
the forward pass, chunk by chunk, and scaled in the backward pass; the weighted sum computes the
residuals again.

The norm is taken of the numbers that are added. What is computed again goes through the same chunks
(one kernel, one shape), and its losses must have the bits that they had. What a tied weight's cross
term needs of the residuals is picked out of the chunks of the forward pass: a product of fewer
columns would round otherwise, and where two large logits tie, rounding decides the softmax.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dpft.errors import RunError
from dpft.head_losses import Chunk, Targets, add_weight_gradient, chunks
from dpft.privacy.clipping.blocks import is_same_tensor
from dpft.privacy.clipping.squares import LONGEST, Squares, in_norm_dtype, lengths
from dpft.privacy.clipping.uses import SMALL, LazyUse, OuterUse
from dpft.privacy.clipping.wide import squares_of_examples


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
class HeadUse(LazyUse):
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

    def outer(self, examples: Tensor | None = None) -> OuterUse:
        """Returns the use of some examples, or of all, with residuals as output gradients.

        The factors are in ``right``, as they are in what is added: residuals are at most 1.
        """
        return self._outer(self.right.dtype, examples)

    def double(self, examples: Tensor) -> OuterUse:
        """Returns the use of some examples in float64."""
        return self._outer(torch.float64, examples)

    def _outer(self, dtype: torch.dtype, examples: Tensor | None) -> OuterUse:
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
        return OuterUse(left, self.right.index_select(0, chosen).to(dtype) * scale)

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

    def keep(self, mask: Tensor) -> "HeadUse":
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
        """Yields the chunks of the forward pass again, zeros where an example takes no part.

        Raises:
            RunError: Their losses have other bits: the norm was taken of other numbers.
        """
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
