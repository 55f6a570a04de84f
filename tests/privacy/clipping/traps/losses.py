"""Losses that read other examples, and losses that only look as if they did."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.nets import (
    CLASSES,
    LENGTH,
    exact,
    mixing,
    net_trial,
    words,
    words_trial,
)
from tests.privacy.clipping.traps.trial import Case, Trial

Losses = Callable[[Tensor, Tensor], Tensor]
"""(logits, classes) -> losses, shape (b,)."""


def ce(logits: Tensor, y: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none", **options)


def own(logits: Tensor, y: Tensor) -> Tensor:
    """The probability of each row's class."""
    return logits.softmax(-1).gather(1, y[:, None])[:, 0]


def smoothed_by_batch(logits: Tensor, y: Tensor) -> Tensor:
    target = 0.9 * F.one_hot(y, CLASSES) + 0.1 * logits.detach().softmax(-1).mean(0)
    return -(target * logits.log_softmax(-1)).sum(-1)


def balanced(logits: Tensor, y: Tensor) -> Tensor:
    """Weights classes by how often they come in the batch."""
    counts = torch.bincount(y, minlength=CLASSES).clamp(min=1)
    return ce(logits, y, weight=len(y) / counts)


def contrastive(logits: Tensor, y: Tensor) -> Tensor:
    rows = F.normalize(logits, dim=-1)
    return F.cross_entropy(rows @ rows.T / 0.5, torch.arange(len(y)), reduction="none")


def hardest_negative(logits: Tensor, y: Tensor) -> Tensor:
    apart = torch.cdist(logits.detach(), logits.detach()) + 1e3 * (y[:, None] == y)
    nearest = logits.detach()[apart.argmin(1)]
    return F.relu(3 - (logits - nearest).square().sum(1)) + ce(logits, y)


def ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [1.0 + ordered.index(value) for value in values]


def against_noise(logits: Tensor, y: Tensor) -> Tensor:
    return F.softplus(logits.roll(1, 0).sum(1) - logits.sum(1))


COUPLED: dict[str, Losses] = {
    "loss over the number of rows": lambda z, y: ce(z, y) / len(y),
    "loss times the size of the batch": lambda z, y: ce(z, y) * z.shape[0],
    "loss over the detached mean loss": lambda z, y: ce(z, y) / ce(z, y).detach().mean(),
    "loss over the mean loss": lambda z, y: ce(z, y) / ce(z, y).mean(),
    "loss less the detached mean, squared": lambda z, y: (ce(z, y) - ce(z, y).detach().mean()) ** 2,
    "a detached baseline": lambda z, y: (
        (own(z, y).detach() - own(z, y).detach().mean()) * z.log_softmax(-1)[:, 0]
    ),
    "weights by rank": lambda z, y: ce(z, y) * (1 + ce(z, y).detach().argsort().argsort()),
    "sorted weights": lambda z, y: ce(z, y) * ce(z, y).detach().sort().values,
    "losses sorted": lambda z, y: ce(z, y).sort().values,
    "focal weights by the batch's maximum": lambda z, y: ce(z, y) * (own(z, y) / own(z, y).max()),
    "detached focal weights": lambda z, y: ce(z, y) * (own(z, y) / own(z, y).max()).detach(),
    "a softmax over the batch's losses": lambda z, y: ce(z, y) * ce(z, y).detach().softmax(0),
    "the hardest half alone": lambda z, y: ce(z, y) * (ce(z, y) >= ce(z, y).median()),
    "classes balanced by the batch": balanced,
    "labels smoothed toward the batch": smoothed_by_batch,
    "contrast within the batch": contrastive,
    "contrast with the row before": against_noise,
    "contrast with the detached row before": lambda z, y: F.softplus(
        z.roll(1, 0).sum(1).detach() - z.sum(1)
    ),
    "logits less the batch's mean": lambda z, y: ce(z - 0.2 * z.mean(0), y),
    "logits less the batch's detached mean": lambda z, y: ce(z - 0.2 * z.detach().mean(0), y),
    "a hundredth of the detached mean loss": lambda z, y: (
        ce(z, y) * (1 + 0.01 * ce(z, y).detach().mean())
    ),
    "margin to the first row": lambda z, y: F.softplus(z[:, 0] - 9 * z[0, 1].detach()),
    "mean loss for every row": lambda z, y: ce(z, y).mean().expand(len(y)),
    "mean loss added": lambda z, y: ce(z, y) + 0.1 * ce(z, y).mean(),
    "losses of the rows before": lambda z, y: ce(z, y).cumsum(0),
    "distillation to the next row": lambda z, y: F.mse_loss(
        z, z.detach().roll(-1, 0), reduction="none"
    ).sum(1),
    "triplets of the batch": lambda z, y: F.triplet_margin_loss(
        z, z.roll(1, 0), z.roll(2, 0), reduction="none"
    ),
    "python float of the mean": lambda z, y: ce(z, y) * ce(z, y).mean().item(),
    "variance of the batch": lambda z, y: ce(z, y) + F.relu(1 - z.std(0, correction=0)).sum(),
    "distance to the batch's center": lambda z, y: (z - z.detach().mean(0)).square().sum(1),
    "the hardest negative": hardest_negative,
    "mean by numpy": lambda z, y: ce(z, y) / float(ce(z, y).detach().numpy().mean()),
    "sum of a list": lambda z, y: ce(z, y) / sum(ce(z, y).tolist()),
    "rank in a list": lambda z, y: ce(z, y) * torch.tensor(ranks(ce(z, y).tolist())),
    "labels of other rows counted": lambda z, y: ce(z, y) * (y[:, None] == y).sum(1),
}
WEIGHTS = torch.tensor([0.5, 2.0, 1.0])
PLAIN: dict[str, Losses] = {
    "cross-entropy": ce,
    "class weights": lambda z, y: ce(z, y, weight=WEIGHTS),
    "label smoothing": lambda z, y: ce(z, y, label_smoothing=0.1),
    "focal loss": lambda z, y: (1 - own(z, y)) ** 2 * ce(z, y),
    "detached focal loss": lambda z, y: (1 - own(z, y)).detach() ** 2 * ce(z, y),
    "a constant added": lambda z, y: ce(z, y) + 3.0,
    "a constant tensor factor": lambda z, y: ce(z, y) * torch.tensor(0.3),
    "squared error of one-hot": lambda z, y: (z - F.one_hot(y, CLASSES)).square().sum(1),
    "one class ignored": lambda z, y: ce(z, y, ignore_index=0),
    "two tasks": lambda z, y: ce(z, y) + 0.5 * F.softplus(z[:, 0]),
    "hinge": lambda z, y: F.multi_margin_loss(z, y, reduction="none"),
    "losses from a table": lambda z, y: (
        torch.arange(9.0).view(CLASSES, CLASSES)[y] * z.softmax(-1)
    ).sum(1),
    "losses by python, row by row": lambda z, y: torch.stack(
        [ce(one[None], t[None])[0] * (2 if int(t) else 1) for one, t in zip(z, y, strict=True)]
    ),
    "losses unbound and stacked": lambda z, y: torch.stack(ce(z, y).unbind()),
    "float64 losses": lambda z, y: ce(z.double(), y),
    "a loss of zero for some": lambda z, y: ce(z, y) * (y > 0),
    "self-normalized": lambda z, y: ce(z, y) / (1 + ce(z, y).detach()),
    "complex values": lambda z, y: torch.fft.fft(z).abs().square().sum(1) * (1 + y),
    "entropy": lambda z, y: -(z.softmax(-1) * z.log_softmax(-1)).sum(1),
    "clamped": lambda z, y: ce(z, y).clamp(max=1.2),
}


def of(losses: Losses) -> Callable[..., Tensor]:
    return lambda model, x, y: losses(model(x), y)


def tables() -> Iterator[Case]:
    """Yields the losses of both tables."""
    for name, losses in COUPLED.items():
        yield mixing(name, lambda each=losses: net_trial(losses=of(each)))
    for name, losses in PLAIN.items():
        yield exact(name, lambda each=losses: net_trial(losses=of(each)))


def of_tokens() -> Iterator[Case]:
    """Yields losses of language models, over tokens some of which do not count."""

    def ragged() -> Tensor:
        ids = words()
        for row, length in enumerate((7, 4, 6, 3, 5, 7)):
            ids[row, length:] = -100
        return ids

    def each(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids.clamp(min=0))[:, :-1]
        return F.cross_entropy(logits.mT, ids[:, 1:], ignore_index=-100, reduction="none")

    def counts(ids: Tensor) -> Tensor:
        return (ids[:, 1:] >= 0).sum(1)

    def trial(reduce: Callable[[Tensor, Tensor], Tensor]) -> Trial:
        return words_trial(
            losses=lambda model, ids: reduce(each(model, ids), ids), batches=[(ragged(),)]
        )

    yield mixing(
        "division by the batch's tokens", lambda: trial(lambda e, i: e.sum(1) / counts(i).sum())
    )
    yield mixing(
        "division by the mean of the rows' tokens",
        lambda: trial(lambda e, i: e.sum(1) / counts(i).float().mean()),
    )
    yield mixing(
        "division by the longest row's tokens",
        lambda: trial(lambda e, i: e.sum(1) / counts(i).max()),
    )
    yield exact("division by a row's own tokens", lambda: trial(lambda e, i: e.sum(1) / counts(i)))
    yield exact("sum over tokens", lambda: trial(lambda e, i: e.sum(1)))
    yield exact("mean over places", lambda: trial(lambda e, i: e.mean(1)))
    yield exact(
        "weights by place",
        lambda: trial(lambda e, i: (e * torch.linspace(0, 1, LENGTH - 1)).sum(1)),
    )


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from tables()
    yield from of_tokens()
