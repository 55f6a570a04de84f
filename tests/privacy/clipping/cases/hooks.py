"""Hooks on modules and tensors, and backward passes of one's own."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tests.privacy.clipping.cases.case import (
    Case,
    Trial,
    either,
    exact,
    mixing,
    mixing_gradients,
    unbatched,
)
from tests.privacy.clipping.cases.nets import Mix, Net, ce, net_trial


def hooked(hook: Callable[..., Any], *, before: bool = False) -> Trial:
    trial = net_trial()
    if before:
        trial.model.leave.register_forward_pre_hook(hook)
    else:
        trial.model.enter.register_forward_hook(hook)
    return trial


def kept_for_the_loss() -> Trial:
    trial, kept = net_trial(), {}
    trial.model.enter.register_forward_hook(
        lambda module, args, out: kept.update(mean=out.detach().mean())
    )
    trial.losses = lambda model, x, y: ce(model(x), y) * (1 + kept["mean"].tanh())
    return trial


def backward_hooked() -> Trial:
    trial = net_trial()
    trial.model.enter.register_full_backward_hook(lambda module, into, out: None)
    return trial


def tensor_hooked(change: Callable[[Tensor], Tensor]) -> Trial:
    """A hook on the logits changes their gradient."""

    def losses(model: Net, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        logits.register_hook(change)
        return ce(logits, y)

    return net_trial(losses=losses)


def parameter_hooked(change: Callable[[Tensor], Tensor]) -> Trial:
    """A hook on a parameter changes its gradient, for example to clip or to mask it."""
    trial = net_trial()
    trial.model.leave.weight.register_hook(change)
    return trial


class ScaledByBatch(torch.autograd.Function):
    """Changes nothing in the forward pass; scales gradients by what the batch holds."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.saved_tensors[0].mean().tanh())


class ScaledByTheNext(ScaledByBatch):
    """Scales the gradient of every other row by what the row after it holds."""

    @staticmethod
    def backward(ctx, grad):
        scaled, (h,) = grad.clone(), ctx.saved_tensors
        factors = h.flatten(1).mean(1).tanh().view(-1, *[1] * (h.dim() - 1))
        pairs = len(grad) // 2
        scaled[: 2 * pairs : 2] *= 1 + factors[1 : 2 * pairs : 2]
        return scaled


class ScaledByItself(ScaledByBatch):
    """Scales the gradient of each row by what that row holds."""

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.saved_tensors[0].mean(-1, keepdim=True).tanh())


def quantized_activations(h: Tensor) -> Tensor:
    """Keep what the backward pass needs in a few steps of the batch's range."""

    def pack(kept: Tensor) -> Tensor:
        step = kept.abs().max() / 3
        return (kept / step).round() * step

    with saved_tensors_hooks(pack, lambda kept: kept):
        return h * torch.tanh(h)


class FrozenStem(Net):
    """A frozen layer under a trainable one: rows mix without a gradient."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.enter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        return self.leave(F.relu(h - self.share * h.mean(0)) if self.share else F.relu(h))


GRADIENTS: dict[str, Mix] = {
    "own backward that reads the batch": ScaledByBatch.apply,
    "own backward that reads the row after": ScaledByTheNext.apply,
    "activations kept in few bits": quantized_activations,
}


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for name, mix in GRADIENTS.items():
        yield mixing_gradients(name, lambda m=mix: net_trial(m))
    # Two rows of one unit may read each other.
    yield exact(
        "own backward that reads the row after, units of two rows",
        lambda: net_trial(ScaledByTheNext.apply, rows_per_unit=2),
    )
    yield exact("own backward that reads its own row", lambda: net_trial(ScaledByItself.apply))
    yield exact("a hook that reads", lambda: hooked(lambda module, args, out: None))
    yield mixing(
        "a hook that mixes", lambda: hooked(lambda module, args, out: out - out.mean(0).detach())
    )
    yield exact("a backward hook that reads", backward_hooked)
    yield mixing("a hook that keeps the batch's mean for the loss", kept_for_the_loss)
    # A tensor without a graph takes no hook, and some checks need no graph.
    yield either("a hook that reverses gradients", lambda: tensor_hooked(lambda g: -0.5 * g))
    yield mixing_gradients(
        "a hook that mixes gradients", lambda: tensor_hooked(lambda g: g - g.mean(0))
    )
    # A parameter's hook runs on the rows' gradients of engine ``rows`` only.
    yield unbatched("a hook on a parameter", lambda: parameter_hooked(lambda g: 2 * g))
    yield mixing("a mean under a frozen stem", lambda: net_trial(model=FrozenStem(0.3)))
    yield exact("a frozen stem", lambda: net_trial(model=FrozenStem(0.0)))
