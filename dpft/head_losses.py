"""Losses of hidden states and a vocabulary head's weight, and their gradients, chunk by chunk.

The gradient of a position's cross-entropy is that of its loss times its residuals, so what goes
back to the hidden states is formed in the forward pass, when the residuals are there. A weight's
gradient needs to know first what each loss is multiplied by; where all are added up alike
(``losses_added_up``) it is formed at once too, else in the backward pass from residuals that are
computed again.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from dpft.vocabulary_chunks import Chunk, Targets, chunks

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
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    shares: Tensor,
    watcher: Watcher | None = None,
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
            if of_weight is not None and _is_one_number(backprops):
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
    found: Iterable[Chunk],
    targets: Targets,
    factors: Tensor,
    total: Tensor,
    *,
    dtype: torch.dtype,
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


def _is_one_number(values: Tensor) -> bool:
    """Whether all values are one and the same by their making; they are not looked at."""
    return len(values) == 1 or values.stride() == (0,)
