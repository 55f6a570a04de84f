"""Ways to call a model: its parts, several times, without gradients, recomputed."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.privacy.clipping.cases.case import (
    Case,
    either,
    exact,
    mixing,
    mixing_gradients,
    unbatched,
)
from tests.privacy.clipping.cases.nets import HIDDEN, Mix, Net, ce, net_trial


def parts(mix: Mix = torch.clone) -> Callable[..., Tensor]:
    """Losses that call a model's parts and never the model."""
    return lambda model, x, y: ce(model.leave(mix(torch.tanh(model.enter(x)))), y)


def uncalled() -> Iterator[Case]:
    """Yield losses that use the model's parts."""
    centered = lambda h: h + 0.5 * h.detach().mean(0)  # noqa: E731
    yield mixing("parts only, a detached mean", lambda: net_trial(losses=parts(centered)))
    yield exact("parts of the model only", lambda: net_trial(losses=parts()))
    yield unbatched("the model by functional_call", lambda: net_trial(losses=functional))
    yield unbatched("a weight used by the losses", lambda: net_trial(losses=by_hand))


def functional(model: Net, x: Tensor, y: Tensor) -> Tensor:
    replaced = {"enter.bias": torch.zeros(HIDDEN)}
    return ce(functional_call(model, replaced, (x,)), y) + ce(model(x), y)


def by_hand(model: Net, x: Tensor, y: Tensor) -> Tensor:
    hidden = nn.functional.linear(x, model.enter.weight).tanh()
    return ce(model.leave(hidden), y)


def several(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y) + 0.5 * ce(model(x * 2), y)


def one_by_one(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([ce(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))])


def referenced(model: Net, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        before = model(x)
    return ce(model(x), y) + 0.1 * (model(x) - before - 1).square().sum(1)


def evaluating_reference(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        model.eval()
        before = model(x)
        model.train()
    return (model(x) - 0.5 * before).square().sum(1)


def mean_reference(model: Net, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        before = ce(model(x), y).mean()
    return (ce(model(x), y) - before).square()


def with_penalty(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """Add a penalty on the gradient with respect to the input."""
    x = x.clone().requires_grad_()
    losses = ce(model(x), y)
    (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + slope.square().sum(1)


def two_views(model: Net, x: Tensor, y: Tensor) -> Tensor:
    first, second = model(torch.cat([x, x * 1.5])).chunk(2)
    return ce(first, y) + (first - second).square().sum(1)


def two_copies(model: Net, x: Tensor, y: Tensor) -> Tensor:
    losses = ce(model(x.repeat_interleave(2, 0)), y.repeat_interleave(2))
    return losses.view(-1, 2).mean(1)


def in_order_of_size(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Sort rows before the call, and put the losses back."""
    order = x.square().sum(1).argsort()
    return ce(model(x[order]), y[order])[order.argsort()]


def some_rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses, some = x.new_zeros(len(x)), y > 0
    losses[some] = ce(model(x[some]), y[some])
    return losses


def in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x.clamp_(-2, 2)
    return ce(model(x), y)


SEVERAL: dict[str, Callable[..., Tensor]] = {
    "two calls": several,
    "a reference without gradients": referenced,
    "a reference in evaluation mode": evaluating_reference,
    "two copies of each row in one call": two_copies,
    "the whole call recomputed": lambda m, x, y: ce(checkpoint(m, x, use_reentrant=False), y),
    "rows clamped in place": in_place,
    "inputs that require a gradient": lambda m, x, y: ce(m(x.clone().requires_grad_()), y),
}
UNBATCHED: dict[str, Callable[..., Tensor]] = {
    "a call for each example": one_by_one,
    "two views in one call": two_views,
    "rows sorted before the call and put back": in_order_of_size,
    "some rows through the model": some_rows,
    "a penalty on input gradients": with_penalty,
}


class Recomputed(nn.Module):
    """A layer under gradient checkpointing; the second run may center the batch."""

    def __init__(self, *, reentrant: bool = False, share: float = 0.0, later: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.reentrant, self.share, self.later, self.again = reentrant, share, later, False

    def run(self, h: Tensor) -> Tensor:
        if self.again and self.later:
            h = h - self.later * h.detach().mean(0)
        self.again = True
        out = self.inner(h)
        return out + self.share * out.detach().mean(0) if self.share else out

    def forward(self, h: Tensor) -> Tensor:
        self.again = False
        return checkpoint(self.run, h, use_reentrant=self.reentrant)


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    yield from uncalled()
    for name, losses in SEVERAL.items():
        yield exact(name, lambda each=losses: net_trial(losses=each))
    for name, losses in UNBATCHED.items():
        yield unbatched(name, lambda each=losses: net_trial(losses=each))
    yield mixing("a reference's mean", lambda: net_trial(losses=mean_reference))
    for kind, reentrant in (("", False), (", reentrant", True)):
        yield exact(
            f"a layer recomputed{kind}", lambda r=reentrant: net_trial(Recomputed(reentrant=r))
        )
    yield mixing("rows mixed in what is recomputed", lambda: net_trial(Recomputed(share=0.3)))
    yield mixing_gradients(
        "other rows only when recomputed", lambda: net_trial(Recomputed(later=1.0))
    )
    yield either(
        "dropout and a reference in evaluation mode",
        lambda: net_trial(nn.Dropout(0.3), losses=evaluating_reference, drawn=True, sizes=(6, 6)),
    )
