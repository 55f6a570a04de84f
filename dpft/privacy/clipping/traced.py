"""Layers that report their uses from inside a compiled forward.

A compiler traces a forward and its backward pass once, so a layer cannot call Python there: it
would break the graph at every layer. Instead each layer's output passes a tap. The tap changes
nothing; in the backward pass it hands the output's gradient, and what the forward kept for it, to
an operator whose inside the compiler does not know, which reports them as they are met.

Nothing reads what a tap reports, so a compiler might leave it out, or take two that look alike for
one. So every tap passes a number on to the next, the anchor, whose gradient comes back through the
operators of all taps, one after another: none can be left out, and no two have the same arguments.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from dpft.privacy.clipping.recorder import Recorder

Report = Callable[..., None]
"""Takes what a layer kept in the forward pass, and then the gradient of its outputs."""


class Tap:
    """The place in a layer where its uses are handed over in a compiled backward pass."""

    def __init__(self, recorder: Recorder, report: Report) -> None:
        """Prepares for a layer.

        Args:
            recorder: Whose anchor passes through.
            report: What the backward pass calls.
        """
        self._recorder, self._report, self._number = recorder, report, next(_NUMBERS)
        _TAPS[self._number] = self

    def __call__(self, outputs: Tensor, *kept: Tensor | None) -> Tensor:
        """Returns a layer's outputs, whose gradient will be reported.

        Args:
            outputs: Computed without a gradient of the layer's weights.
            kept: What is reported with it.
        """
        anchor = self._recorder.anchor
        tapped: Tensor
        tapped, self._recorder.anchor = _Tapped.apply(outputs, anchor, self._number, *kept)
        return tapped

    @property
    def is_used(self) -> bool:
        """Whether a compiler follows the code that is running, in a forward made for taps."""
        return torch.compiler.is_compiling() and self._recorder.anchor is not None

    def report(self, kept: Sequence[Tensor | None], backprops: Tensor) -> None:
        """Hands over what was met in the backward pass.

        Copies, since a compiled pass may write its next result where the last one stood.
        """
        own = [None if tensor is None else tensor.clone() for tensor in (*kept, backprops)]
        self._report(*own)


_NUMBERS = count()
_TAPS: WeakValueDictionary[int, Tap] = WeakValueDictionary()


def new_anchor(device: torch.device) -> Tensor:
    """Returns the number that the taps of one forward pass on, shape ()."""
    return torch.zeros((), device=device, requires_grad=True)


class _Tapped(torch.autograd.Function):
    """Outputs as they are, and the anchor for the next tap."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, anchor: Tensor, number: int, *kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.number = number
        ctx.save_for_backward(*kept)
        # No view of a hidden tensor: a model may go on in place (Longformer's scaling does).
        return torch.ops.aten._unsafe_view(outputs, outputs.shape), anchor.clone()

    @staticmethod
    def backward(ctx: Any, backprops: Tensor, of_anchor: Tensor) -> tuple[Tensor | None, ...]:
        kept = list(ctx.saved_tensors)
        anchor = torch.ops.dpft.hand_over(of_anchor, [*kept, backprops], ctx.number)
        return backprops, anchor, None, *(None for _ in kept)


@torch.library.custom_op("dpft::hand_over", mutates_args=())
def _hand_over(of_anchor: Tensor, handed: list[Tensor | None], number: int) -> Tensor:
    *kept, backprops = handed
    assert backprops is not None
    _TAPS[number].report(kept, backprops)
    return of_anchor.clone()


@_hand_over.register_fake
def _(of_anchor: Tensor, handed: list[Tensor | None], number: int) -> Tensor:
    return torch.empty_like(of_anchor)
