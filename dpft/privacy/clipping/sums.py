"""The clipped sum of a step, added up over micro-batches without the error of adding them up.

Leaving one record out shifts every later record by a place, so that other micro-batches are
added to other totals, and float32 rounds otherwise at each addition. Over M micro-batches of n
records that would move the sum by up to ``eps M n C / 2``, more than the record itself may: records
crafted so that each addition loses half a unit in the last place were seen to move 8192 others, two
at a time, by 0.67 C. (Casacuberta et al. 2022, arXiv 2207.10635, show the same of other libraries.)
So what each addition loses is kept, and added with the next micro-batch (Knuth's two-sum). What
is left does not grow with M and is allowed for in the clip factors (``rounding_headroom``).

>>> sums, weight = CompensatedSums(), torch.zeros(1)
>>> total = sums.add("weight", weight, None, lambda part: part.fill_(1.0))
>>> for _ in range(4):
...     total = sums.add("weight", weight, total, lambda part: part.fill_(2.0**-25))
>>> float(total) == 1 + 2.0**-23  # plain float32 additions would leave 1
True
"""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

CPU_BLOCK = 2**17
"""Coordinates added at a time on a processor, few enough for its cache."""
DEVICE_BLOCK = 2**24
"""And on an accelerator, so many that launches do not count; 128 MB for two results."""
ROUNDINGS = 32
"""Roundings of the whole sum that the headroom allows for, see ``rounding_headroom``."""


class CompensatedSums:
    """Adds micro-batches' sums to a parameter's gradient, and keeps what each addition loses.

    From the second micro-batch of a step on it holds one more tensor of each trainable
    parameter's size.

    Guarantees:
        After any number of additions the total is the exact sum of the parts, within
        ``eps * (|total| + sum of |part|)`` in each coordinate, to first order in eps (the
        distance from 1 to the next number, 1.2e-7 in float32).
    """

    def __init__(self) -> None:
        """Starts with nothing kept."""
        self._lost: dict[str, Tensor] = {}
        self._left: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def add(
        self,
        name: str,
        parameter: Tensor,
        total: Tensor | None,
        contribute: Callable[[Tensor], object],
    ) -> Tensor:
        """Returns the total with a micro-batch's part added, in place where there is one.

        Args:
            name: Name of the parameter whose gradient it is.
            parameter: The parameter itself, which may be another tensor at each call.
            total: What was added up before; None for nothing. If someone else changed it since,
                what its last addition lost is forgotten.
            contribute: Adds the part to zeros of the parameter's shape.
        """
        part = torch.zeros_like(parameter)
        contribute(part)
        lost = self._lost.pop(name, None)
        if total is None:
            total = part
        else:
            if lost is not None and self._is_as_left(name, total):
                part.add_(lost)
            _add_keeping_loss(total, part)
            self._lost[name] = part
        self._left[name] = (weakref.ref(total), total._version)
        return total

    def _is_as_left(self, name: str, total: Tensor) -> bool:
        reference, version = self._left[name]
        return reference() is total and total._version == version


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


def _add_keeping_loss(total: Tensor, part: Tensor) -> None:
    """Adds ``part`` to ``total``, and leaves in ``part`` what rounding took (two-sum, exact)."""
    highs, lows = _blocks(total, part), _blocks(part, total)
    room = torch.empty_like(highs[0]), torch.empty_like(highs[0])
    for high, low in zip(highs, lows, strict=True):
        # The last block may be smaller.
        added, share = (each[: len(high)] for each in room)
        torch.add(high, low, out=added)
        torch.sub(added, high, out=share)
        low.sub_(share)
        torch.sub(added, share, out=share)
        low.add_(high.sub_(share))
        high.copy_(added)


def _blocks(tensor: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    if tensor.is_contiguous() and other.is_contiguous():
        size = CPU_BLOCK if tensor.device.type == "cpu" else DEVICE_BLOCK
        blocks: tuple[Tensor, ...] = tensor.view(-1).split(size)
        return blocks
    return (tensor,)
