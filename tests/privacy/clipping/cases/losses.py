"""Losses that read other examples, and losses that only look as if they did."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.cases.case import Case, Trial, either, exact, mixing, rejected
from tests.privacy.clipping.cases.nets import (
    CLASSES,
    batch,
    ce,
    net_trial,
    ragged,
    words,
    words_trial,
)

Losses = Callable[[Tensor, Tensor], Tensor]
"""(logits, classes) -> per-example losses, shape (b,)."""


def own(logits: Tensor, y: Tensor) -> Tensor:
    """Return the probability of each row's class."""
    return logits.softmax(-1).gather(1, y[:, None])[:, 0]


def balanced(logits: Tensor, y: Tensor) -> Tensor:
    """Weight classes by their frequency in the batch."""
    counts = torch.bincount(y, minlength=CLASSES).clamp(min=1)
    return ce(logits, y, weight=len(y) / counts)


def ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [1.0 + ordered.index(value) for value in values]


COUPLED: dict[str, Losses] = {
    "loss over the number of rows": lambda z, y: ce(z, y) / len(y),
    "loss over the detached mean loss": lambda z, y: ce(z, y) / ce(z, y).detach().mean(),
    "weights by rank": lambda z, y: ce(z, y) * (1 + ce(z, y).detach().argsort().argsort()),
    "the hardest half only": lambda z, y: ce(z, y) * (ce(z, y) >= ce(z, y).median()),
    "classes balanced by the batch": balanced,
    "a hundredth of the detached mean loss": lambda z, y: (
        ce(z, y) * (1 + 0.01 * ce(z, y).detach().mean())
    ),
    "a Python float of the mean": lambda z, y: ce(z, y) * ce(z, y).mean().item(),
    "variance of the batch": lambda z, y: ce(z, y) + F.relu(1 - z.std(0, correction=0)).sum(),
    "rank in a list": lambda z, y: ce(z, y) * torch.tensor(ranks(ce(z, y).tolist())),
}
SEPARATE: dict[str, Losses] = {
    "cross-entropy": ce,
    "one class ignored": lambda z, y: ce(z, y, ignore_index=0),
    "losses from a table": lambda z, y: (
        torch.arange(9.0).view(CLASSES, CLASSES)[y] * z.softmax(-1)
    ).sum(1),
    "control flow by each row's value": lambda z, y: torch.stack(
        [row[0] if float(row[1]) > 0 else row[1] ** 2 for row in z]
    ),
    "losses by vmap": lambda z, y: torch.vmap(
        lambda row, t: -row.log_softmax(0).gather(0, t[None])[0]
    )(z, y),
    "float64 losses": lambda z, y: ce(z.double(), y),
    "a loss of zero for some": lambda z, y: ce(z, y) * (y > 0),
    "complex values": lambda z, y: torch.fft.fft(z).abs().square().sum(1) * (1 + y),
    "zero losses with a gradient": lambda z, y: ce(z, y) - ce(z.detach(), y),
}


def of(losses: Losses) -> Callable[..., Tensor]:
    return lambda model, x, y: losses(model(x), y)


def of_tokens() -> Iterator[Case]:
    """Yield losses of language models, over tokens some of which have no label."""

    def each(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids.clamp(min=0))[:, :-1]
        return ce(logits.mT, ids[:, 1:], ignore_index=-100)

    def counts(ids: Tensor) -> Tensor:
        return (ids[:, 1:] >= 0).sum(1)

    def trial(reduce: Callable[[Tensor, Tensor], Tensor]) -> Trial:
        losses = lambda model, ids: reduce(each(model, ids), ids)  # noqa: E731
        return words_trial(losses=losses, draw=lambda rows: (ragged(rows, -100),))

    table = {
        "the batch's tokens": lambda e, i: e.sum(1) / counts(i).sum(),
        "the mean of the rows' tokens": lambda e, i: e.sum(1) / counts(i).float().mean(),
        "the longest row's tokens": lambda e, i: e.sum(1) / counts(i).max(),
    }
    for name, reduce in table.items():
        yield mixing(f"division by {name}", lambda r=reduce: trial(r))
    yield exact("division by a row's own tokens", lambda: trial(lambda e, i: e.sum(1) / counts(i)))
    yield exact("sum over tokens", lambda: trial(lambda e, i: e.sum(1)))
    yield exact("mean over places", lambda: trial(lambda e, i: e.mean(1)))


class KeepsLastMean:
    """A loss object that divides by the mean of the batch before."""

    def __init__(self) -> None:
        self.average = 1.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = ce(model(x), y)
        scaled = losses / self.average
        self.average = float(losses.detach().mean())
        return scaled


class NotesMeans:
    """A loss object that keeps means for a chart."""

    def __init__(self) -> None:
        self.history: list[float] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = ce(model(x), y)
        self.history.append(float(losses.detach().mean()))
        return losses


def weighted(scale: Tensor, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y) * scale


def objects() -> Iterator[Case]:
    """Yield losses that are objects, and batches of other fields than features and classes."""

    def with_field(losses: Callable[..., Tensor], draw: Callable[[int], Tensor]) -> Trial:
        return net_trial(losses=losses, draw=lambda rows: (*batch(rows), draw(rows)))

    yield rejected(
        "a loss that keeps the last mean", lambda: net_trial(losses=KeepsLastMean(), sizes=(6, 6))
    )
    yield exact("a loss that notes its means", lambda: net_trial(losses=NotesMeans(), sizes=(6, 6)))
    yield exact(
        "a partial with a factor", lambda: net_trial(losses=partial(weighted, torch.tensor(0.7)))
    )
    yield exact(
        "a weight for each row",
        lambda: with_field(lambda m, x, y, w: ce(m(x), y) * w, torch.rand),
    )
    yield mixing(
        "targets less the batch's mean",
        lambda: with_field(lambda m, x, y, t: (m(x).sum(1) - (t - t.mean())).square(), torch.rand),
    )
    yield exact(
        "a mask of places that are as many as rows",
        lambda: words_trial(
            lambda h: torch.ones(h.shape[1], h.shape[1]).tril() @ h,
            draw=lambda rows: (words(rows, 6),),
        ),
    )
    # Noise that losses_of draws cannot be turned off to compare a row with itself.
    yield either("noise added by the losses", lambda: net_trial(losses=noisy, drawn=True))
    yield either("dropout in the losses", lambda: net_trial(losses=dropping, drawn=True))
    yield mixing(
        "noise as large as the batch",
        lambda: net_trial(losses=lambda m, x, y: ce(m(x + torch.randn(x.shape) * x.std()), y)),
    )


def noisy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x + 0.1 * torch.randn(x.shape)), y)


def dropping(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(F.dropout(x, 0.3)), y)


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for name, losses in COUPLED.items():
        yield mixing(name, lambda each=losses: net_trial(losses=of(each)))
    for name, losses in SEPARATE.items():
        yield exact(name, lambda each=losses: net_trial(losses=of(each)))
    yield from of_tokens()
    yield from objects()
