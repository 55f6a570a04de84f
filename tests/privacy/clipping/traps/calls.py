"""Ways to call a model: its parts, several times, without gradients, recomputed."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    Net,
    either,
    exact,
    mixing,
    net_trial,
)
from tests.privacy.clipping.traps.trial import Case


def ce(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def parts(mix: Callable[[Tensor], Tensor] = torch.clone) -> Callable[..., Tensor]:
    """Losses that call a model's parts and never the model."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return ce(model.leave(mix(torch.tanh(model.enter(x)))), y)

    return losses


def uncalled() -> Iterator[Case]:
    """Yields losses that use the model's parts alone."""
    yield exact("parts of the model alone", lambda: net_trial(losses=parts()))
    mixes: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda h: h + 0.5 * h.mean(0),
        "detached mean": lambda h: h + 0.5 * h.detach().mean(0),
        "detached first row": lambda h: h - h[0].detach(),
        "detached running sum": lambda h: h + h.detach().cumsum(0),
        "rows flipped": lambda h: h.flip(0),
        "detached rows flipped": lambda h: h + h.detach().flip(0),
    }
    for name, mix in mixes.items():
        yield mixing(f"parts alone, {name}", lambda mix=mix: net_trial(losses=parts(mix)))
    yield exact("one part of several alone", lambda: net_trial(losses=head_alone))
    yield exact("a method of the model", lambda: net_trial(model=WithMethod(), losses=by_method))
    yield mixing(
        "a method that reads the batch",
        lambda: net_trial(model=WithMethod(0.3), losses=by_method),
    )
    yield exact("parts and the model", lambda: net_trial(losses=parts_and_model))
    yield exact("the model by functional_call", lambda: net_trial(losses=functional))


def head_alone(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return model.enter(x).square().sum(1)


class WithMethod(Net):
    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share

    def scores(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        return self.leave(h - self.share * h.detach().mean(0) if self.share else h)


def by_method(model: WithMethod, x: Tensor, y: Tensor) -> Tensor:
    return ce(model.scores(x), y)


def parts_and_model(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y) + model.enter(x).square().mean(1)


def functional(model: Net, x: Tensor, y: Tensor) -> Tensor:
    frozen = {"enter.bias": torch.zeros(HIDDEN)}
    return ce(functional_call(model, frozen, (x,)), y) + ce(model(x), y)


def several(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y) + 0.5 * ce(model(x * 2), y)


def in_turn(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """Each example is a call of its own."""
    return torch.cat([ce(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))])


def in_halves(model: Net, x: Tensor, y: Tensor) -> Tensor:
    half = (len(x) + 1) // 2
    pieces = [ce(model(p), t) for p, t in ((x[:half], y[:half]), (x[half:], y[half:])) if len(p)]
    return torch.cat(pieces)


def referenced(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """Less what the model said without gradients."""
    with torch.no_grad():
        before = model(x)
    return ce(model(x), y) + 0.1 * (model(x) - before - 1).square().sum(1)


def mean_reference(model: Net, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        before = ce(model(x), y).mean()
    return (ce(model(x), y) - before).square()


def self_distilled(model: Net, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        teacher = model(x).softmax(-1)
    return -(teacher * model(x + 0.1).log_softmax(-1)).sum(1)


def with_penalty(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """A penalty on the gradient with respect to the input."""
    x = x.clone().requires_grad_()
    losses = ce(model(x), y)
    (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + slope.square().sum(1)


def adversarial(model: Net, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(ce(model(x), y).sum(), x)
    return ce(model((x + 0.1 * slope.sign()).detach()), y)


def recomputed(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(checkpoint(model, x, use_reentrant=False), y)


def multi_view(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """Two views of every row in one call, one loss for each row."""
    first, second = model(torch.cat([x, x * 1.5])).chunk(2)
    return ce(first, y) + (first - second).square().sum(1)


def repeated(times: int) -> Callable[..., Tensor]:
    def losses(model: Net, x: Tensor, y: Tensor) -> Tensor:
        each = ce(model(x.repeat_interleave(times, 0)), y.repeat_interleave(times))
        return each.view(-1, times).mean(1)

    return losses


REFUSABLE = {
    "a call for each example",
    "two halves of the batch",
    "two views in one call",
    "two copies of each row in one call",
    "the whole call recomputed",
}


def calls() -> Iterator[Case]:
    """Yields other numbers of calls than one."""
    table: dict[str, Callable[..., Tensor]] = {
        "two calls": several,
        "a call for each example": in_turn,
        "two halves of the batch": in_halves,
        "a reference without gradients": referenced,
        "distillation of oneself": self_distilled,
        "adversarial rows": adversarial,
        "the whole call recomputed": recomputed,
        "two views in one call": multi_view,
        "two copies of each row in one call": repeated(2),
    }
    for name, losses in table.items():
        yield (either if name in REFUSABLE else exact)(
            name, lambda each=losses: net_trial(losses=each)
        )
    yield either("a penalty on input gradients", lambda: net_trial(losses=with_penalty))
    yield mixing("a reference's mean", lambda: net_trial(losses=mean_reference))
    yield exact("a layer recomputed", lambda: net_trial(Recomputed(reentrant=False)))
    yield either("a layer recomputed, the old way", lambda: net_trial(Recomputed(reentrant=True)))
    yield mixing(
        "rows mixed in what is recomputed",
        lambda: net_trial(Recomputed(reentrant=False, share=0.3)),
    )


class Recomputed(nn.Module):
    def __init__(self, *, reentrant: bool, share: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.reentrant, self.share = reentrant, share

    def run(self, h: Tensor) -> Tensor:
        out = self.inner(h)
        return out + self.share * out.detach().mean(0) if self.share else out

    def forward(self, h: Tensor) -> Tensor:
        return checkpoint(self.run, h, use_reentrant=self.reentrant)


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from uncalled()
    yield from calls()
