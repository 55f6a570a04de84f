"""Closures that draw, cache, count with numbers of their own, or build their batch inside."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tests.privacy.clipping.traps.losses import ce
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WIDTH,
    WORDS,
    Net,
    Words,
    batch,
    classes,
    classified,
    either,
    exact,
    features,
    mixing,
    net_trial,
    squared,
)
from tests.privacy.clipping.traps.trial import Case, Trial


def noisy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x + 0.1 * torch.randn(x.shape)), y)


def dropping(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(F.dropout(x, 0.3)), y)


def cropping(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One place for all rows, by a draw."""
    return ce(model(x.roll(int(torch.randint(0, 3, ())), 1)), y)


def mixup(order: Callable[[int], Any]) -> Callable[..., Tensor]:
    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        other = order(len(x))
        return 0.7 * ce(model(0.7 * x + 0.3 * x[other]), y)

    return losses


def drawing() -> Iterator[Case]:
    """Yields closures that draw random numbers."""
    yield exact("noise added in the closure", lambda: net_trial(losses=noisy, drawn=True))
    yield exact("dropout in the closure", lambda: net_trial(losses=dropping, drawn=True))
    yield exact("one draw for all rows", lambda: net_trial(losses=cropping, drawn=True))
    yield mixing("mixup in the closure", lambda: net_trial(losses=mixup(torch.randperm)))
    yield mixing(
        "mixup by python's random",
        lambda: net_trial(losses=mixup(lambda n: random.sample(range(n), n))),
    )
    yield mixing(
        "mixup by a fixed order", lambda: net_trial(losses=mixup(lambda n: list(range(1, n)) + [0]))
    )
    yield mixing(
        "noise as large as the batch",
        lambda: net_trial(losses=lambda m, x, y: ce(m(x + torch.randn(x.shape) * x.std()), y)),
    )


def numbered(reduce: Callable[[Tensor], Tensor] = torch.clone) -> Trial:
    """Losses that say how many rows there are by a number."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return reduce(ce(model(x).view(ROWS, 3), y))

    def alone(model: nn.Module, one: tuple, row: int) -> Tensor:
        x, y = (part[row : row + 1] for part in one)
        return reduce(classified(model, x, y))[0]

    return net_trial(losses=losses, alone=alone)


def listed(reduce: Callable[[Tensor], Tensor] = torch.clone, *, longest: int = 8) -> Trial:
    """Rows that come as a list of texts, padded inside."""

    def losses(model: nn.Module, texts: list[Tensor]) -> Tensor:
        ids = pad_sequence(texts, batch_first=True)
        mask = pad_sequence([torch.ones(len(t)) for t in texts], batch_first=True)
        each = F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], reduction="none")
        return reduce((each * mask[:, 1:]).sum(1))

    texts = [torch.randint(0, WORDS, (n,)) for n in (7, 4, longest, 3, 5, 7)]
    return net_trial(model=Words(), losses=losses, batches=[(texts,)])


def less_mean(losses: Tensor) -> Tensor:
    return losses / losses.detach().mean()


def unable_to_shrink() -> Iterator[Case]:
    """Yields closures that do not run on fewer rows as they are."""
    yield exact("a number of rows written down", numbered)
    yield mixing("a number of rows written down, and a mean", lambda: numbered(less_mean))
    yield exact("rows in a list, padded inside", listed)
    # A text of as many words as there are rows looks like a tensor of rows.
    yield either(
        "rows in a list, one as long as the batch, padded inside", lambda: listed(longest=ROWS)
    )
    yield mixing("rows in a list, padded inside, and a mean", lambda: listed(less_mean))
    yield exact("one loss for each row by vmap", lambda: net_trial(losses=by_vmap))
    yield either("weights used by the closure itself", lambda: net_trial(losses=by_hand))
    yield exact("everything is six", six)
    yield either("words in one line with offsets", offsets)
    yield either("graphs of two nodes", graphs)


def by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.vmap(lambda z, t: -z.log_softmax(0).gather(0, t[None])[0])(model(x), y)


def by_hand(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(model.leave(F.linear(x, model.enter.weight).tanh()), y)


def six() -> Trial:
    """As many rows as places, words, units and classes."""

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places = nn.Embedding(6, 6), nn.Embedding(6, 6)
            self.weights = nn.Parameter(torch.randn(6, 6) * 0.3)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.leave = nn.Linear(6, 6)

        def forward(self, ids: Tensor) -> Tensor:
            h = self.table(ids) + self.places(torch.arange(6))
            h = h + self.attention(h, h, h, attn_mask=torch.ones(6, 6).triu(1).bool())[0]
            return self.leave(torch.tanh(h @ self.weights))

    weight = torch.linspace(0.5, 1.5, 6)

    def losses(model: nn.Module, ids: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids).mT, ids.roll(-1, 1), weight=weight, reduction="none")
        return each.mean(1)

    return net_trial(model=Square(), losses=losses, batches=[(torch.randint(0, 6, (6, 6)),)])


def offsets() -> Trial:
    bag = nn.EmbeddingBag(WORDS, HIDDEN, mode="sum")

    def losses(model: nn.Module, ids: Tensor) -> Tensor:
        line, starts = ids.flatten(), torch.arange(len(ids)) * ids.shape[1]
        return model(line, starts).square().mean(1)

    return net_trial(model=bag, losses=losses, batches=[(torch.randint(0, WORDS, (ROWS, LENGTH)),)])


def graphs() -> Trial:
    """Nodes of all graphs in one line; each graph's loss is its nodes' sum."""

    def losses(model: nn.Module, nodes: Tensor) -> Tensor:
        count = len(nodes)
        scores = model(nodes.flatten(0, 1)).square().sum(1)
        graph = torch.arange(count).repeat_interleave(2)
        return torch.zeros(count).index_add(0, graph, scores)

    return net_trial(losses=losses, batches=[(features(2, WIDTH),)])


class CachedPlaces(Net):
    """Keeps places for as many rows as it was first called with."""

    def __init__(self, *, check: bool) -> None:
        super().__init__()
        self.places: Tensor | None = None
        self.check = check

    def forward(self, x: Tensor) -> Tensor:
        if self.places is None or (self.check and self.places.shape != x.shape):
            self.places = torch.linspace(0, 1, x.shape[1]).expand(x.shape).clone()
        return super().forward(x + self.places)


class Noting(Net):
    """Keeps what it computed for whoever wants to look."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.enter(x)
        return super().forward(x)


def cached_loss() -> Callable[..., Tensor]:
    """A closure that keeps a mask it made when it was first called."""
    kept: dict[int, Tensor] = {}

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        mask = kept.setdefault(x.shape[1], torch.linspace(0, 1, x.shape[1]))
        return squared(model, x * mask)

    return losses


def caching() -> Iterator[Case]:
    """Yields models and closures that keep something from call to call."""
    yield exact("places kept, made anew for other sizes", lambda: kept(check=True))
    yield either("places kept for as many rows as came first", lambda: kept(check=False))
    yield exact("a mask kept by the closure", lambda: net_trial(losses=cached_loss()))
    yield exact(
        "what was computed last, kept and unread",
        lambda: net_trial(model=Noting(), batches=[batch(), batch()]),
    )


def kept(*, check: bool) -> Trial:
    return net_trial(model=CachedPlaces(check=check), batches=[(features(WIDTH), classes())])


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from drawing()
    yield from unable_to_shrink()
    yield from caching()
