"""Losses that are objects, keep a state, or capture what is no argument."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.privacy.clipping.traps.losses import ce
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    ROWS,
    WIDTH,
    Net,
    batch,
    classes,
    exact,
    features,
    mixing,
    net_trial,
    words,
    words_trial,
)
from tests.privacy.clipping.traps.trial import Case, Trial


class Scaling:
    """A callable with an attribute, as a library's loss objects are."""

    def __init__(self) -> None:
        self.average = 1.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = ce(model(x), y)
        scaled = losses / self.average
        self.average = float(losses.detach().mean())
        return scaled


def weighted(scale: Tensor, model: nn.Module, x: Tensor, y: Tensor, *rest: Tensor) -> Tensor:
    return ce(model(x), y) * scale


def cases() -> Iterator[Case]:
    """Yields losses that are objects, keep a state, or capture what is no argument."""

    def six_classes() -> Trial:
        model = Net()
        model.leave = nn.Linear(HIDDEN, ROWS)
        scale = torch.linspace(0.2, 2, ROWS)
        rows = [(features(WIDTH), torch.randint(0, ROWS, (ROWS,)))]
        return net_trial(
            model=model, batches=rows, losses=lambda m, x, y: ce(m(x), y, weight=scale)
        )

    def positions() -> Trial:
        factors = torch.linspace(0.1, 1, ROWS)
        return words_trial(
            losses=lambda m, ids: (m(ids).square().mean(2) * factors).sum(1),
            batches=[(words(length=ROWS),)],
        )

    def with_own(losses: Callable[..., Tensor], *more: Any) -> Trial:
        return net_trial(losses=losses, batches=[(features(WIDTH), classes(), *more)])

    yield mixing(
        "a loss that keeps the last mean",
        lambda: net_trial(losses=Scaling(), batches=[batch(), batch()]),
    )
    yield exact("a partial with a factor", lambda: with_own(partial(weighted, torch.tensor(0.7))))
    yield exact(
        "a weight for each row",
        lambda: with_own(lambda m, x, y, w: ce(m(x), y) * w, torch.rand(ROWS)),
    )
    yield exact(
        "labels in a python list",
        lambda: with_own(
            lambda m, x, y, labels: ce(m(x), torch.tensor(labels)), [0, 1, 2, 2, 1, 1]
        ),
    )
    yield exact("as many classes as rows, weighted", six_classes)
    yield exact("as many places as rows, weighted", positions)
    yield exact(
        "a mask of places where places are as many as rows",
        lambda: words_trial(
            lambda h: torch.ones(h.shape[1], h.shape[1]).tril() @ h, batches=[(words(length=ROWS),)]
        ),
    )
    yield exact("labels that are not the model's", lambda: with_own(regression, torch.rand(ROWS)))
    yield mixing("soft labels from the batch", lambda: with_own(soft, torch.rand(ROWS)))


def regression(model: nn.Module, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return (model(x).sum(1) - target).square()


def soft(model: nn.Module, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return (model(x).sum(1) - (target - target.mean())).square()
