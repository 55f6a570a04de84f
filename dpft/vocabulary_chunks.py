"""Cross-entropy over a vocabulary, some positions at a time, so that its logits never exist whole.

A head's logits, (b, t, v), and what the logarithm and the backward pass make of them, are most of
a small model's memory. Here a chunk of them is there at a time: its losses are taken, and in its
place what the gradient is made of, softmax minus one-hot: the *residuals*. A position whose label
is ignored is left out of every product.

Shapes: b examples, t positions, n of them that count, v vocabulary, d width.

>>> hidden, weight = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[1.0], [0.0]])
>>> targets = Targets.of(torch.tensor([[-100, 0]]))
>>> for chunk in chunks(hidden, weight, targets):
...     print(chunk.losses, chunk.residuals)
tensor([0.1269]) tensor([[-0.1192,  0.1192]])
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.kinds import IGNORED_LABEL

CHUNK_NUMBERS = 2**24
"""Logits that are there at a time (64 MB); one example's where they are more and must be whole."""
CACHED_NUMBERS = 2**20
"""Of them, what a processor takes the logarithm of at a time, so that it stays in its cache."""
Place = tuple[tuple[int, int], tuple[int, int]]
"""First and past-last of a chunk's positions, and of its examples."""


@dataclass(frozen=True)
class Targets:
    """The positions of a batch that count, and the tokens that they are to predict.

    Attributes:
        places: Numbers of the positions among all b t, ascending, shape (n,).
        labels: Of these positions, shape (n,).
        examples: Example of each of them, shape (n,).
        counts: How many each example has; they show on the host, which waits for it.
    """

    places: Tensor
    labels: Tensor
    examples: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, labels: Tensor) -> "Targets":
        """Returns those of labels, token ids or -100, shape (b, t)."""
        # On the host, so that a device is looked at once.
        counted = (labels != IGNORED_LABEL).cpu()
        places = counted.flatten().nonzero()[:, 0]
        examples = places // max(1, labels.shape[1])
        counts = tuple(counted.sum(1).tolist())
        places, examples = places.to(labels.device), examples.to(labels.device)
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
    """Returns how many residuals of float32 stay, of whole examples, all of whose positions count.

    Args:
        rows: Examples.
        length: Positions of each.
        vocabulary: Tokens.
        room: As ``chunks``.
    """
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
