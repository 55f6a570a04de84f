"""Sums of clipped gradients over the micro-batches of a step, with compensated rounding.

If one record is removed, all later records move by one place. The micro-batches and the totals to
which they are added are then different, and float32 rounds differently at each addition. Over M
micro-batches of n records, this could change the sum by up to ``eps M n C / 2``, which can exceed
the influence of the record. With records that were crafted so that each addition loses half a unit
in the last place, removing one record changed the sum of the 8192 others by 0.67 C. Casacuberta et
al. 2022 (arXiv 2207.10635) show the same for other libraries. The rounding error of each addition
is therefore kept and added with the next micro-batch (Knuth's two-sum). The remaining error does
not grow with M, and clip factors leave room for it (``rounding_headroom``).

>>> sums, total = CompensatedSums(), torch.ones(1)
>>> for _ in range(4):
...     total = sums.add("weight", total, torch.full((1,), 2.0**-25))
...     sums.flush()
>>> float(total) == 1 + 2.0**-23  # plain float32 additions would return 1
True
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDINGS = 32
"""Number of roundings of the whole sum for which headroom is reserved (``rounding_headroom``)."""
CPU_BLOCK, DEVICE_BLOCK = 2**17, 2**24
"""Numbers per operation: on a CPU, few enough for its cache; on a GPU, many, for few launches."""


def rounding_headroom(expected_batch_size: float, dtype: torch.dtype = torch.float32) -> float:
    """Return the share of the clipping norm that clip factors reserve for the sum's rounding.

    Each of two neighboring sums has at most n records of norm C, and is within ``eps n C`` of the
    exact total of its micro-batches: the total is rounded once, and each part once, by half of eps
    (``CompensatedSums``; ``sum of |part|`` is at most ``n C``). For both sums together, these are 4
    roundings of ``eps / 2 * n C``. The remaining 28 are for the contraction of a micro-batch, which
    libraries add up in tiles, and for the forward and backward pass; no proof covers these. The
    worst records that we crafted against the order of additions need 28 in total; random aligned
    records need less than one.

    n is the expected batch size plus a margin, because the size of the draw itself is private. A
    Poisson draw exceeds n with a probability below 1e-13.
    """
    most: float = expected_batch_size + 8 * expected_batch_size**0.5 + 32
    return ROUNDINGS * torch.finfo(dtype).eps / 2 * most


@dataclass(frozen=True)
class _Addition:
    """A total, the part to add to the total, and the rounding error of the previous addition."""

    total: Tensor
    part: Tensor
    lost: Tensor | None


class CompensatedSums:
    """Compensated sums of micro-batches in the parameters' gradients.

    From the second micro-batch of a step on, this object holds one more tensor of each trainable
    parameter's size. Additions of many small parameters are carried out in one operation.

    Guarantees:
        After any number of additions, the total is the exact sum of the parts within
        ``eps * (|total| + sum of |part|)`` in each coordinate, to first order in eps. eps is the
        distance from 1 to the next number, 1.2e-7 in float32.
    """

    def __init__(self) -> None:
        self._lost: dict[str, Tensor] = {}
        self._totals: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._pending: dict[str, _Addition] = {}
        self._size = 0
        self._is_checked = False

    def add(self, name: str, total: Tensor | None, part: Tensor) -> Tensor:
        """Return the total to which ``flush`` adds a micro-batch's part in place.

        Args:
            name: Name of the parameter, once per micro-batch.
            total: The sum so far; None for the first part. If the total was changed since the last
                ``flush``, the rounding error of its previous addition is dropped.
            part: Tensor of the parameter's shape, which is overwritten or becomes the total.
        """
        if not self._is_checked:
            self._drop_stale()
        lost = self._lost.pop(name, None)
        reference, _ = self._totals.get(name, (None, 0))
        if total is None:
            self._totals[name] = weakref.ref(part), part._version
            return part
        if reference is None or reference() is not total:
            lost = None
        self._totals[name] = weakref.ref(total), total._version
        self._pending[name] = _Addition(total, part, lost)
        self._size += part.numel()
        if self._size >= _block(part.device):
            self._carry_out()
        return total

    def flush(self) -> None:
        """Carry out the pending additions of a micro-batch."""
        self._carry_out()
        # Read the counters only now: totals may be views of one tensor and share its counter.
        for name, (reference, _) in self._totals.items():
            total = reference()
            self._totals[name] = reference, -1 if total is None else total._version
        self._is_checked = False

    def _drop_stale(self) -> None:
        """Drop the rounding errors of totals that were changed since the last ``flush``."""
        for name, (reference, version) in self._totals.items():
            total = reference()
            if total is None or total._version != version:
                self._lost.pop(name, None)
        self._is_checked = True

    def _carry_out(self) -> None:
        pending, self._pending, self._size = self._pending, {}, 0
        for bucket in _buckets(pending.values()):
            _add_keeping_loss(bucket)
        for name, addition in pending.items():
            self._lost[name] = addition.part


def _block(device: torch.device) -> int:
    return CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK


def _add_keeping_loss(bucket: Sequence[_Addition]) -> None:
    """Add each part to its total, and store the rounding error in the part (two-sum, exact)."""
    highs, lows = [addition.total for addition in bucket], [addition.part for addition in bucket]
    losts = [addition.lost for addition in bucket if addition.lost is not None]
    if losts:
        torch._foreach_add_(
            [addition.part for addition in bucket if addition.lost is not None], losts
        )
    added = torch._foreach_add(highs, lows)
    share = torch._foreach_sub(highs, added)
    torch._foreach_add_(lows, share)
    torch._foreach_add_(share, added)
    torch._foreach_sub_(highs, share)
    torch._foreach_add_(lows, highs)
    torch._foreach_copy_(highs, added)


def _buckets(additions: Iterable[_Addition]) -> Iterator[list[_Addition]]:
    """Yield lists of additions of about one block of numbers each; split large additions."""
    bucket: list[_Addition] = []
    size = 0
    for addition in additions:
        most = _block(addition.part.device)
        for piece in _pieces(addition, most):
            if bucket and size + piece.part.numel() > most:
                yield bucket
                bucket, size = [], 0
            bucket.append(piece)
            size += piece.part.numel()
    if bucket:
        yield bucket


def _pieces(addition: _Addition, most: int) -> Iterator[_Addition]:
    """Yield an addition as pieces of at most ``most`` numbers, if its tensors are contiguous."""
    tensors = [t for t in (addition.total, addition.part, addition.lost) if t is not None]
    if addition.part.numel() <= most or not all(tensor.is_contiguous() for tensor in tensors):
        yield addition
        return
    for total, part, *lost in zip(*(t.view(-1).split(most) for t in tensors), strict=True):
        yield _Addition(total, part, lost[0] if lost else None)
