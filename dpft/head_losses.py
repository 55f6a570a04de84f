"""Fused cross-entropy of a vocabulary head: losses and gradients, and never all logits at once.

A head's logits, (b, t, v), and what the logarithm and the backward pass make of them, are most of
a small model's memory. Here a chunk of them is there at a time: its losses are taken, and in its
place what the gradient is made of, softmax minus one-hot: the *residuals*. A position whose label
is ignored is left out of every product. The gradient of a position's cross-entropy is that of its
loss times its residuals, so what goes back to the hidden states is formed in the forward pass. A
weight's gradient needs to know first what each loss is multiplied by; where all are added up alike
(``losses_added_up``) it is formed at once too, else in the backward pass from residuals that are
computed again.

``LossHead`` is a dense layer without bias like any other, and has a second way: called with labels
it gives these losses. Since a model calls its head itself, the head can be told to pass hidden
states on as they are meanwhile: what the model returns as logits are then the hidden states, and
the head is called on them once more. So a model that does something to its logits cannot be fused.

Shapes: b examples, t positions, n of them that count, v vocabulary, d width.

>>> hidden, weight = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[1.0], [0.0]])
>>> targets = Targets.of(torch.tensor([[-100, 0]]))
>>> for chunk in chunks(hidden, weight, targets):
...     print(chunk.losses, chunk.residuals)
tensor([0.1269]) tensor([[-0.1192,  0.1192]])
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dpft.devices import moved, on_host
from dpft.kinds import CAUSAL, IGNORED_LABEL

CHUNK_NUMBERS = 2**24
"""Logits that are there at a time (64 MB); one example's where they are more and must be whole."""
CACHED_NUMBERS = 2**20
"""Of them, what a processor takes the logarithm of at a time, so that it stays in its cache."""
Place = tuple[tuple[int, int], tuple[int, int]]
"""First and past-last of a chunk's positions, and of its examples."""


def predicted_labels(labels: Tensor, kind: str, *, filling: int = IGNORED_LABEL) -> Tensor:
    """Returns what is known of each label, shape (b, t), where that label is predicted.

    A decoder's input is its labels one step late, and a masked token's label is where it stood.
    """
    if kind != CAUSAL:
        return labels
    # Labels are shifted in place of logits: a shifted (b, t, v) copy costs v times as much.
    return nn.functional.pad(labels[:, 1:], (0, 1), value=filling)


@dataclass(frozen=True)
class Targets:
    """The positions of a batch that count, and the tokens that they are to predict.

    Attributes:
        places: Numbers of the positions among all b t, ascending, shape (n,).
        labels: Of these positions, shape (n,).
        examples: Example of each of them, shape (n,).
        counts: How many each example has, as the host knows.
    """

    places: Tensor
    labels: Tensor
    examples: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, labels: Tensor) -> "Targets":
        """Returns those of labels, token ids or -100, shape (b, t)."""
        # On the host, which knows a batch's labels; others are looked at once.
        counted = on_host(labels) != IGNORED_LABEL
        places = counted.flatten().nonzero()[:, 0]
        examples = places // max(1, labels.shape[1])
        counts = tuple(counted.sum(1).tolist())
        places, examples = moved(places, labels.device), moved(examples, labels.device)
        return cls(places, labels.flatten().index_select(0, places), examples, counts)


@dataclass(frozen=True)
class Chunk:
    """Some positions that count, end to end.

    Attributes:
        span: First and past-last of them among the n.
        examples: First and past-last example that they are of.
        inputs: Hidden states, (m, d).
        losses: Cross-entropies, (m,).
        residuals: Softmax minus one-hot, (m, v).
        stays: Whether they may be kept; else the next chunk takes their memory.
    """

    span: tuple[int, int]
    examples: tuple[int, int]
    inputs: Tensor
    losses: Tensor
    residuals: Tensor
    stays: bool = False


def chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Targets,
    *,
    whole_examples: bool = False,
    room: int = 0,
    known: Sequence[Chunk] = (),
) -> Iterator[Chunk]:
    """Yields the positions that count, a chunk at a time; the same ones each time it is asked.

    Args:
        hidden: Shape (b, t, d), in the dtype that products are taken in.
        weight: Of the head, (v, d), in any dtype.
        targets: Of the batch.
        whole_examples: Whether each example's positions are in one chunk.
        room: Bytes of residuals that stay, those of the first chunks.
        known: The first chunks, from an earlier time.
    """
    yield from known
    matrix = weight.detach().to(hidden.dtype).t()
    rows = hidden.detach().flatten(0, 1)
    spans = list(_spans(targets.counts, _most_rows(len(weight)), whole_examples))[len(known) :]
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    staying = _staying(spans, len(weight) * dtype.itemsize, room)
    longest = max((stop - start for (start, stop), _ in spans[staying:]), default=0)
    buffer = None
    for number, ((start, stop), examples) in enumerate(spans):
        inputs = rows.index_select(0, targets.places[start:stop])
        if number < staying:
            residuals = hidden.new_empty(stop - start, len(weight), dtype=dtype)
        else:
            buffer = (
                hidden.new_empty(longest, len(weight), dtype=dtype) if buffer is None else buffer
            )
            residuals = buffer[: stop - start]
        if hidden.dtype == dtype:
            torch.mm(inputs, matrix, out=residuals)
        else:
            residuals.copy_(inputs @ matrix)
        losses = _make_residuals(residuals, targets.labels[start:stop])
        yield Chunk((start, stop), examples, inputs, losses, residuals, number < staying)


def chunk_numbers(rows: int, length: int, vocabulary: int, *, whole_examples: bool) -> int:
    """Returns how many logits are there at a time, of examples all of whose positions count."""
    most = _most_rows(vocabulary)
    if whole_examples:
        most = max(length, most // length * length)
    return min(rows * length, most) * vocabulary


def kept_numbers(rows: int, length: int, vocabulary: int, *, room: int) -> int:
    """Returns how many residuals of float32 stay, of whole examples whose positions all count."""
    spans = list(_spans([length] * rows, _most_rows(vocabulary), True))
    staying = _staying(spans, 4 * vocabulary, room)
    return spans[staying - 1][0][1] * vocabulary if staying else 0


def _staying(spans: Sequence[Place], row_bytes: int, room: int) -> int:
    """Returns of how many chunks, from the first on, the residuals have room."""
    return sum(stop * row_bytes <= room for (_, stop), _ in spans)


def _most_rows(vocabulary: int) -> int:
    return max(1, CHUNK_NUMBERS // max(1, vocabulary))


def _make_residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """Turns logits into residuals in place; returns losses, (m,)."""
    size = len(logits)
    if logits.device.type == "cpu":
        size = max(1, CACHED_NUMBERS // max(1, logits.shape[1]))
    losses = [logits.new_empty(0)]
    for block, tokens in zip(logits.split(size), labels.split(size), strict=True):
        own = tokens.unsqueeze(1)
        logs = torch.log_softmax(block, 1)
        losses.append(-logs.gather(1, own)[:, 0])
        torch.exp(logs, out=block)
        block.scatter_add_(1, own, block.new_full((1, 1), -1.0).expand_as(own))
    return torch.cat(losses)


def _spans(counts: Sequence[int], most: int, whole_examples: bool) -> Iterator[Place]:
    """Yields the positions and the examples of each chunk, as few as hold them."""
    start = stop = first = 0
    for example, count in enumerate(counts):
        if stop > start and stop - start + count > most:
            yield (start, stop), (first, example)
            start, first = stop, example
        stop += count
        while not whole_examples and stop - start > most:
            yield (start, start + most), (example, example + 1)
            start, first = start + most, example
    if stop > start:
        yield (start, stop), (first, len(counts))


_ADDED_UP: ContextVar[bool] = ContextVar("losses_added_up", default=False)


class Watcher(Protocol):
    """What sees a head's chunks in place of a gradient of its weight."""

    room: int
    """Bytes of residuals that may stay with it."""

    def see(self, chunk: Chunk, targets: Targets) -> None:
        """Takes what it needs of a chunk, in the forward pass; its examples are whole."""

    def report(self, hidden: Tensor, targets: Targets, factors: Tensor) -> None:
        """Is told, in the backward pass, what each example's residuals are multiplied by, (b,)."""


@contextmanager
def losses_added_up() -> Iterator[None]:
    """Says that losses computed meanwhile are added up, each multiplied by the same number.

    Where they are not after all, the gradient is right nevertheless, and takes longer.
    """
    token = _ADDED_UP.set(True)
    try:
        yield
    finally:
        _ADDED_UP.reset(token)


def token_losses(
    hidden: Tensor, weight: Tensor, labels: Tensor, shares: Tensor, watcher: Watcher | None = None
) -> Tensor:
    """Returns the sum of each example's cross-entropies, times its share; shape (b,).

    In float32 at least. A torch function like any other: modes see it.

    Args:
        hidden: Shape (b, t, d).
        weight: Of the head, (v, d).
        labels: Token ids or -100, shape (b, t).
        shares: Shape (b,).
        watcher: What is told of the weight's part; None: the weight gets its gradient.
    """
    tensors = (hidden, weight, labels, shares)
    if has_torch_function(tensors):
        losses: Tensor = handle_torch_function(token_losses, tensors, *tensors, watcher=watcher)
        return losses
    hidden, backward = _for_product(hidden), torch.is_grad_enabled()
    found: Tensor = _TokenLosses.apply(hidden, weight, labels, shares, watcher, backward)
    return found


def _for_product(hidden: Tensor) -> Tensor:
    """Returns hidden states as autocast would cast them for a product."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device) or hidden.dtype == torch.float64:
        return hidden
    return hidden.to(torch.get_autocast_dtype(device))


class _TokenLosses(torch.autograd.Function):
    """Losses whose gradient is formed as they are, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        shares: Tensor,
        watcher: Watcher | None,
        backward: bool,
    ) -> Tensor:
        goes_back, trains = (needed and backward for needed in ctx.needs_input_grad[:2])
        ctx.watcher, ctx.targets = watcher if trains else None, Targets.of(labels)
        shares = shares.to(torch.promote_types(hidden.dtype, torch.float32))
        directions = torch.zeros_like(hidden).flatten(0, 1) if goes_back else None
        added_up = trains and watcher is None and _ADDED_UP.get()
        ctx.total = torch.zeros_like(weight) if added_up else None
        with torch.autocast(hidden.device.type, enabled=False):
            sums = _run(ctx, hidden, weight, shares, directions)
        kept = (hidden, weight) if trains else (None, None)
        ctx.save_for_backward(*kept, shares, directions)
        ctx.size = hidden.shape
        return sums * shares

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, shares, directions = ctx.saved_tensors
        factors = backprops * shares
        of_hidden = of_weight = None
        if ctx.watcher is not None:
            ctx.watcher.report(hidden, ctx.targets, factors)
        elif ctx.needs_input_grad[1]:
            # Another pass over the same graph finds no total: this one is handed on.
            of_weight, ctx.total = ctx.total, None
            if of_weight is not None and (
                len(backprops) == 1 or backprops.stride() == (0,)  # one number by its making
            ):
                of_weight.mul_(backprops[0])
            else:
                of_weight = torch.zeros_like(weight)
                again = chunks(hidden, weight, ctx.targets)
                add_weight_gradient(again, ctx.targets, factors, of_weight, dtype=hidden.dtype)
        if directions is not None:
            of_hidden = directions.view(ctx.size) * factors.to(directions.dtype).view(-1, 1, 1)
        return of_hidden, of_weight, None, None, None, None


def _run(
    ctx: Any, hidden: Tensor, weight: Tensor, shares: Tensor, directions: Tensor | None
) -> Tensor:
    """Goes through the chunks once; returns the sums of each example's losses."""
    sums, targets = torch.zeros_like(shares), ctx.targets
    matrix = weight.detach().to(hidden.dtype)
    watcher = ctx.watcher
    room = 0 if watcher is None else watcher.room
    for chunk in chunks(hidden, weight, targets, whole_examples=watcher is not None, room=room):
        start, stop = chunk.span
        examples = targets.examples[start:stop]
        sums.index_add_(0, examples, chunk.losses)
        if directions is not None:
            found = chunk.residuals.to(hidden.dtype) @ matrix
            directions.index_copy_(0, targets.places[start:stop], found)
        if ctx.total is not None:
            _add_product(ctx.total, chunk, shares.index_select(0, examples), hidden.dtype)
        if watcher is not None:
            watcher.see(chunk, targets)
    return sums


def add_weight_gradient(
    found: Iterable[Chunk], targets: Targets, factors: Tensor, total: Tensor, *, dtype: torch.dtype
) -> None:
    """Adds the gradient of a head's weight to ``total``, (v, d).

    Args:
        found: The chunks of a batch, computed anew.
        targets: Of the batch.
        factors: What each example's residuals are multiplied by, (b,), in the dtype that inputs
            are multiplied by them in.
        total: Shape (v, d).
        dtype: What products of residuals and inputs are taken in.
    """
    for chunk in found:
        start, stop = chunk.span
        _add_product(total, chunk, factors.index_select(0, targets.examples[start:stop]), dtype)


def _add_product(total: Tensor, chunk: Chunk, factors: Tensor, dtype: torch.dtype) -> None:
    """Adds ``residuals^T (factors * inputs)`` to ``total``, a product in ``dtype``."""
    inputs = chunk.inputs.to(factors.dtype) * factors.unsqueeze(1)
    left, right = chunk.residuals.to(dtype).t(), inputs.to(dtype)
    if dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


class LossHead(nn.Linear):
    """A dense layer without bias, from hidden states to a vocabulary, that also gives losses."""

    def __init__(self, head: nn.Linear) -> None:
        """Takes the place of a layer; the weight stays the very same."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = head.in_features, head.out_features
        self.weight = head.weight
        self.register_parameter("bias", None)
        self.train(head.training)
        self.is_used = True
        """Whether losses are to be taken of it; else of logits, as of any other head."""
        self.passes = False
        """Whether hidden states pass it unchanged."""

    def forward(
        self, hidden: Tensor, labels: Tensor | None = None, shares: Tensor | None = None
    ) -> Tensor:
        """Returns logits, (b, t, v); or losses, (b,), where labels are given; or ``hidden``.

        Args:
            hidden: Shape (b, t, d).
            labels: Token ids or -100, shape (b, t).
            shares: What each example's sum of losses is multiplied by, shape (b,).
        """
        if self.passes:
            return hidden
        if labels is None or shares is None:
            return nn.functional.linear(hidden, self.weight)
        return token_losses(hidden, self.weight, labels, shares)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Lets hidden states pass meanwhile."""
        self.passes = True
        try:
            yield
        finally:
            self.passes = False

    @contextmanager
    def unused(self) -> Iterator[None]:
        """Has losses taken of logits meanwhile."""
        before, self.is_used = self.is_used, False
        try:
            yield
        finally:
            self.is_used = before


def fuse_head(model: nn.Module) -> LossHead | None:
    """Gives a model a head that also gives losses, and returns it.

    None where its head is no plain dense layer without bias, which stays as it is.
    """
    find = getattr(model, "get_output_embeddings", lambda: None)
    head = find()
    if isinstance(head, LossHead):
        return head
    if type(head) is not nn.Linear or head.bias is not None:
        return None
    if head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head):
        return None
    path = next(path for path, module in model.named_modules() if module is head)
    holder, _, name = path.rpartition(".")
    owner = model.get_submodule(holder)
    fused = LossHead(head)
    setattr(owner, name, fused)
    return fused


def loss_head_of(model: nn.Module) -> LossHead | None:
    """Returns the head of a model that losses are to be taken of, or None."""
    heads = (module for module in model.modules() if isinstance(module, LossHead))
    return next((head for head in heads if head.is_used), None)
