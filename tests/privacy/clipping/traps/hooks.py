"""Hooks on modules and tensors, and backward passes of one's own."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.privacy.clipping.traps.calls import ce
from tests.privacy.clipping.traps.nets import Net, either, exact, mixing, net_trial
from tests.privacy.clipping.traps.trial import Case, Trial


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
    """A hook on a tensor changes the gradient on its way."""

    def losses(model: Net, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        logits.register_hook(change)
        return ce(logits, y)

    return net_trial(losses=losses)


class ScaledByBatch(torch.autograd.Function):
    """Changes nothing forward; backward it scales gradients by what the batch held."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.saved_tensors[0].mean().tanh())


def cases() -> Iterator[Case]:
    """Yields hooks, in models and on tensors."""
    yield exact("a hook that scales", lambda: hooked(lambda module, args, out: out * 2))
    yield exact("a hook that looks", lambda: hooked(lambda module, args, out: None))
    yield exact(
        "a hook before a layer", lambda: hooked(lambda module, args: (args[0] * 2,), before=True)
    )
    yield mixing(
        "a hook that mixes", lambda: hooked(lambda module, args, out: out - out.mean(0).detach())
    )
    yield mixing(
        "a hook that mixes before a layer",
        lambda: hooked(lambda module, args: (args[0] - args[0][0].detach(),), before=True),
    )
    yield exact("a hook backward that looks", backward_hooked)
    yield mixing("own backward that reads the batch", lambda: net_trial(ScaledByBatch.apply))
    yield mixing("a hook that keeps the batch's mean for the loss", kept_for_the_loss)
    yield either("a hook that reverses gradients", lambda: tensor_hooked(lambda g: -0.5 * g))
    yield mixing("a hook that mixes gradients", lambda: tensor_hooked(lambda g: g - g.mean(0)))
    yield either(
        "a hook that normalizes gradients by the batch",
        lambda: tensor_hooked(lambda g: g / g.norm()),
    )
