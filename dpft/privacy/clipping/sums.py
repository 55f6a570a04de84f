"""The clipped sum of a step, added up over micro-batches without the error of adding them up.

Leaving one record out shifts every later record by a place, so that other micro-batches are
added to other totals, and float32 rounds otherwise at each addition. Over M micro-batches of n
records that would move the sum by up to ``eps M n C / 2``, more than the record itself may: records
crafted so that each addition loses half a unit in the last place were seen to move 8192 others, two
at a time, by 0.67 C. (Casacuberta et al. 2022, arXiv 2207.10635, show the same of other libraries.)
So what each addition loses is kept, and added with the next micro-batch (Knuth's two-sum). What
is left does not grow with M and is allowed for in the clip factors (``rounding_headroom``).

>>> sums, total = CompensatedSums(), torch.ones(1)
>>> for _ in range(4):
...     total = sums.add("weight", total, torch.full((1,), 2.0**-25))
...     sums.flush()
>>> float(total) == 1 + 2.0**-23  # plain float32 additions would leave 1
True
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.squares import numbers_at_a_time

ROUNDINGS = 32
"""Roundings of the whole sum that the headroom allows for, see ``rounding_headroom``."""


@dataclass(frozen=True)
class _Addition:
    """What is to be added to a total, and what the last addition to it lost."""

    total: Tensor
    part: Tensor
    lost: Tensor | None


class CompensatedSums:
    """Adds micro-batches' sums to parameters' gradients, and keeps what each addition loses.

    From the second micro-batch of a step on it holds one more tensor of each trainable
    parameter's size. Additions wait for each other, so that those of many small parameters are
    one operation.

    Guarantees:
        After any number of additions the total is the exact sum of the parts, within
        ``eps * (|total| + sum of |part|)`` in each coordinate, to first order in eps (the
        distance from 1 to the next number, 1.2e-7 in float32).
    """

    def __init__(self) -> None:
        self._lost: dict[str, Tensor] = {}
        self._left: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._waiting: dict[str, _Addition] = {}
        self._size = 0

    def add(self, name: str, total: Tensor | None, part: Tensor) -> Tensor:
        """Returns the total to which a micro-batch's part is added, in place, by ``flush``.

        Args:
            name: Name of the parameter whose gradient it is.
            total: What was added up before; None for nothing. If someone else changed it since,
                what its last addition lost is forgotten.
            part: Of the parameter's shape; it becomes the sums' own.
        """
        if name in self._waiting:
            self.flush()
        lost = self._lost.pop(name, None)
        if total is None:
            self._left[name] = (weakref.ref(part), part._version)
            return part
        if lost is not None:
            reference, version = self._left[name]
            if reference() is not total or total._version != version:
                lost = None
        self._waiting[name] = _Addition(total, part, lost)
        self._size += part.numel()
        if self._size >= numbers_at_a_time(part.device):
            self.flush()
        return total

    def flush(self) -> None:
        """Carries out the additions that wait."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        for bucket in _buckets(waiting.values()):
            _add_keeping_loss(bucket)
        for name, addition in waiting.items():
            self._lost[name] = addition.part
            self._left[name] = (weakref.ref(addition.total), addition.total._version)


def rounding_headroom(expected_batch_size: float, dtype: torch.dtype = torch.float32) -> float:
    """Returns the share of the clipping norm that clip factors leave for the sum's rounding.

    The two sums that a record's presence tells apart are each of at most n records of norm C,
    and each within ``eps n C`` of what its micro-batches gave: a total is rounded once, and a
    part once, by half of eps (``CompensatedSums``; ``sum of |part|`` is taken for ``n C``). That is
    4 roundings of ``eps / 2 * n C``. Sums over the rows of an embedding, and over examples of
    gradients that are formed, are taken in float64 and rounded once. The other 28 are for the
    products of dense layers, which libraries add up in tiles, and for the forward and backward
    pass: no proof covers those. Records crafted against the order of additions, the worst that
    were found, need 28 in all (128 positions a micro-batch, which Intel's library adds up one
    after the other); aligned records at random needed less than one.

    n is the expected batch size and a margin that a Poisson draw exceeds with probability below
    1e-13: the draw itself is private.
    """
    most: float = expected_batch_size + 8 * expected_batch_size**0.5 + 32
    return ROUNDINGS * torch.finfo(dtype).eps / 2 * most


def _add_keeping_loss(bucket: Sequence[_Addition]) -> None:
    """Adds each part to its total, and leaves in it what rounding took (two-sum, exact)."""
    highs, lows = [each.total for each in bucket], [each.part for each in bucket]
    losts = [each.lost for each in bucket if each.lost is not None]
    if losts:
        torch._foreach_add_([each.part for each in bucket if each.lost is not None], losts)
    added = torch._foreach_add(highs, lows)
    share = torch._foreach_sub(highs, added)
    torch._foreach_add_(lows, share)
    torch._foreach_add_(share, added)
    torch._foreach_sub_(highs, share)
    torch._foreach_add_(lows, highs)
    torch._foreach_copy_(highs, added)


def _buckets(additions: Iterable[_Addition]) -> Iterator[list[_Addition]]:
    """Yields the additions in pieces and groups of about as many numbers as are added at a time."""
    bucket: list[_Addition] = []
    size = 0
    for addition in additions:
        most = numbers_at_a_time(addition.part.device)
        for piece in _pieces(addition, most):
            if bucket and size + piece.part.numel() > most:
                yield bucket
                bucket, size = [], 0
            bucket.append(piece)
            size += piece.part.numel()
    if bucket:
        yield bucket


def _pieces(addition: _Addition, most: int) -> Iterator[_Addition]:
    """Yields an addition as a few of at most so many numbers each, where its memory is in order."""
    tensors = [t for t in (addition.total, addition.part, addition.lost) if t is not None]
    if addition.part.numel() <= most or not all(tensor.is_contiguous() for tensor in tensors):
        yield addition
        return
    for total, part, *lost in zip(*(t.view(-1).split(most) for t in tensors), strict=True):
        yield _Addition(total, part, lost[0] if lost else None)
