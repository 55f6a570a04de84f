"""Models whose rows mix only in some calls: later, in training, at another size, by a state."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from tests.privacy.clipping.traps.mixing import detached
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    Mix,
    batch,
    either,
    exact,
    mixing,
    net_trial,
)
from tests.privacy.clipping.traps.trial import Case


def with_mean(h: Tensor) -> Tensor:
    return h + 0.5 * h.mean(0)


class InTraining(nn.Module):
    """Mixes rows in training mode alone."""

    def __init__(self, mix: Mix, dropout: float = 0.0) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.mix = mix

    def forward(self, h: Tensor) -> Tensor:
        h = self.drop(h)
        return self.mix(h) if self.training else h


class Drawing(nn.Module):
    """Draws noise by itself, and mixes rows in training mode alone."""

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return h
        h = h * (torch.rand(h.shape) > 0.3)
        return h + 0.3 * h.detach().sum(0)


class State(nn.Module):
    """What one batch leaves in a buffer, the next one reads."""

    def __init__(self, update: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(HIDDEN), persistent=False)
        self.update = update

    def forward(self, h: Tensor) -> Tensor:
        out = h + self.state
        self.state = self.update(self.state, h.detach())
        return out


class InPlaceState(State):
    """The same, the buffer written in place."""

    def forward(self, h: Tensor) -> Tensor:
        out = h + self.state
        self.state.copy_(self.update(self.state, h.detach()))
        return out


class Bank(nn.Module):
    """A queue of what earlier rows were, as contrastive learning keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(8, HIDDEN), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        near = torch.softmax(h @ self.queue.clone().T, -1) @ self.queue.clone()
        self.queue = torch.cat([h.detach(), self.queue])[:8]
        return h + near


class Remembering(nn.Module):
    """Keeps what it was last called with in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        out = h if self.last is None else h + self.last.mean(0)
        self.last = h.detach()
        return out


class From(nn.Module):
    """Mixes rows from a certain number of calls in training on."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
        self.call = call

    def forward(self, h: Tensor) -> Tensor:
        self.calls += self.training
        return with_mean(h) if int(self.calls) > self.call else h


def batches(count: int, rows: int = 6) -> list:
    return [batch(rows) for _ in range(count)]


def training() -> Iterator[Case]:
    """Yields models that mix rows in training alone, some of them random."""
    for name, mix in {"mean": with_mean, "detached mean": detached(with_mean)}.items():
        yield mixing(f"{name} in training", lambda m=mix: net_trial(InTraining(m)))
        yield mixing(f"{name} in training, dropout", lambda m=mix: net_trial(InTraining(m, 0.3)))
        yield mixing(
            f"{name}, dropout", lambda m=mix: net_trial(nn.Sequential(nn.Dropout(0.3), Always(m)))
        )
    yield mixing(
        "a detached hundredth of the mean, dropout",
        lambda: net_trial(
            nn.Sequential(nn.Dropout(0.3), Always(detached(lambda h: h + 0.01 * h.mean(0))))
        ),
    )
    yield mixing(
        "less the first row, detached, dropout",
        lambda: net_trial(nn.Sequential(nn.Dropout(0.3), Always(detached(lambda h: h - h[0])))),
    )
    yield mixing("own noise and detached sum in training", lambda: net_trial(Drawing()))
    yield mixing(
        "mixup of rows by a draw",
        lambda: net_trial(lambda h: 0.7 * h + 0.3 * h[torch.randperm(len(h))]),
    )
    yield mixing(
        "mixup of detached rows by a draw",
        lambda: net_trial(lambda h: 0.7 * h + 0.3 * h[torch.randperm(len(h))].detach()),
    )
    yield exact("one draw for all rows", lambda: net_trial(SharedMask(), drawn=True))
    yield exact("a layer dropped by one draw", lambda: net_trial(LayerDrop(), drawn=True))


class Always(nn.Module):
    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, h: Tensor) -> Tensor:
        return self.mix(h)


class SharedMask(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (torch.rand(1, HIDDEN) > 0.3) if self.training else h


class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h: Tensor) -> Tensor:
        return h if self.training and torch.rand([]) < 0.5 else self.inner(h)


def states() -> Iterator[Case]:
    """Yields models that carry something of one batch into the next."""
    average = lambda old, h: 0.9 * old + 0.1 * h.mean(0)  # noqa: E731
    for name, make in {"replaced": State, "written in place": InPlaceState}.items():
        yield mixing(
            f"a running mean, {name}",
            lambda make=make: net_trial(make(average), batches=batches(3)),
        )
    yield mixing(
        "the last row kept for the next batch",
        lambda: net_trial(State(lambda _, h: h[-1]), batches=batches(2)),
    )
    yield mixing("a memory bank", lambda: net_trial(Bank(), batches=batches(2)))
    yield mixing(
        "the last batch in an attribute", lambda: net_trial(Remembering(), batches=batches(2))
    )
    # The sum is exact, but the buffer goes out with the model.
    yield either(
        "a buffer that nobody reads",
        lambda: net_trial(Unread(), batches=batches(2)),
    )
    yield either("a counter of calls", lambda: net_trial(From(100), batches=batches(3)))


class Unread(State):
    def __init__(self) -> None:
        super().__init__(lambda old, h: old + h.mean(0))

    def forward(self, h: Tensor) -> Tensor:
        super().forward(h)
        return h * 2


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from training()
    yield from states()
