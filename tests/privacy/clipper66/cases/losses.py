"""Losses that read other examples, and losses that only look as if they did."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipper66.cases.case import Case, Trial, either, exact, mixing, rejected
from tests.privacy.clipper66.cases.nets import (
    CLASSES,
    LENGTH,
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


def smoothed_by_batch(logits: Tensor, y: Tensor) -> Tensor:
    target = 0.9 * F.one_hot(y, CLASSES) + 0.1 * logits.detach().softmax(-1).mean(0)
    return -(target * logits.log_softmax(-1)).sum(-1)


def balanced(logits: Tensor, y: Tensor) -> Tensor:
    """Weight classes by their frequency in the batch."""
    counts = torch.bincount(y, minlength=CLASSES).clamp(min=1)
    return ce(logits, y, weight=len(y) / counts)


def contrastive(logits: Tensor, y: Tensor) -> Tensor:
    rows = F.normalize(logits, dim=-1)
    return ce(rows @ rows.T / 0.5, torch.arange(len(y)))


def hardest_negative(logits: Tensor, y: Tensor) -> Tensor:
    apart = torch.cdist(logits.detach(), logits.detach()) + 1e3 * (y[:, None] == y)
    nearest = logits.detach()[apart.argmin(1)]
    return F.relu(3 - (logits - nearest).square().sum(1)) + ce(logits, y)


def ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [1.0 + ordered.index(value) for value in values]


def against_row_before(logits: Tensor, y: Tensor) -> Tensor:
    return F.softplus(logits.roll(1, 0).sum(1) - logits.sum(1))


COUPLED: dict[str, Losses] = {
    "loss over the number of rows": lambda z, y: ce(z, y) / len(y),
    "loss over the detached mean loss": lambda z, y: ce(z, y) / ce(z, y).detach().mean(),
    "loss over the mean loss": lambda z, y: ce(z, y) / ce(z, y).mean(),
    "loss less the detached mean, squared": lambda z, y: (ce(z, y) - ce(z, y).detach().mean()) ** 2,
    "a detached baseline": lambda z, y: (
        (own(z, y).detach() - own(z, y).detach().mean()) * z.log_softmax(-1)[:, 0]
    ),
    "weights by rank": lambda z, y: ce(z, y) * (1 + ce(z, y).detach().argsort().argsort()),
    "losses sorted": lambda z, y: ce(z, y).sort().values,
    "focal weights by the batch's maximum": lambda z, y: ce(z, y) * (own(z, y) / own(z, y).max()),
    "detached focal weights": lambda z, y: ce(z, y) * (own(z, y) / own(z, y).max()).detach(),
    "a softmax over the batch's losses": lambda z, y: ce(z, y) * ce(z, y).detach().softmax(0),
    "the hardest half only": lambda z, y: ce(z, y) * (ce(z, y) >= ce(z, y).median()),
    "classes balanced by the batch": balanced,
    "labels smoothed toward the batch": smoothed_by_batch,
    "contrast within the batch": contrastive,
    "contrast with the row before": against_row_before,
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
    "a Python float of the mean": lambda z, y: ce(z, y) * ce(z, y).mean().item(),
    "variance of the batch": lambda z, y: ce(z, y) + F.relu(1 - z.std(0, correction=0)).sum(),
    "distance to the batch's center": lambda z, y: (z - z.detach().mean(0)).square().sum(1),
    "the hardest negative": hardest_negative,
    "mean by NumPy": lambda z, y: ce(z, y) / float(ce(z, y).detach().numpy().mean()),
    "sum of a list": lambda z, y: ce(z, y) / sum(ce(z, y).tolist()),
    "rank in a list": lambda z, y: ce(z, y) * torch.tensor(ranks(ce(z, y).tolist())),
    "labels of other rows counted": lambda z, y: ce(z, y) * (y[:, None] == y).sum(1),
    "mixup by a fixed order": lambda z, y: ce(0.7 * z + 0.3 * z.roll(1, 0), y),
    "losses normalized by the batch's spread": lambda z, y: ce(z / (1 + z.detach().std()), y),
}
WEIGHTS = torch.tensor([0.5, 2.0, 1.0])
SEPARATE: dict[str, Losses] = {
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
    "losses by Python, row by row": lambda z, y: torch.stack(
        [ce(one[None], t[None])[0] * (2 if int(t) else 1) for one, t in zip(z, y, strict=True)]
    ),
    "control flow by each row's value": lambda z, y: torch.stack(
        [row[0] if float(row[1]) > 0 else row[1] ** 2 for row in z]
    ),
    "losses unbound and stacked": lambda z, y: torch.stack(ce(z, y).unbind()),
    "losses by vmap": lambda z, y: torch.vmap(
        lambda row, t: -row.log_softmax(0).gather(0, t[None])[0]
    )(z, y),
    "float64 losses": lambda z, y: ce(z.double(), y),
    "a loss of zero for some": lambda z, y: ce(z, y) * (y > 0),
    "self-normalized": lambda z, y: ce(z, y) / (1 + ce(z, y).detach()),
    "complex values": lambda z, y: torch.fft.fft(z).abs().square().sum(1) * (1 + y),
    "entropy": lambda z, y: -(z.softmax(-1) * z.log_softmax(-1)).sum(1),
    "clamped": lambda z, y: ce(z, y).clamp(max=1.2),
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
    weights = torch.linspace(0, 1, LENGTH - 1)
    yield exact("weights by place", lambda: trial(lambda e, i: (e * weights).sum(1)))


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
    yield exact(
        "targets that are numbers",
        lambda: with_field(lambda m, x, y, t: (m(x).sum(1) - t).square(), torch.rand),
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
