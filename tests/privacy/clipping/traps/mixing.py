"""Models whose rows read other rows of the batch: the traps a gradient may not show."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    Mix,
    exact,
    mixing,
    net_trial,
    words,
    words_trial,
)
from tests.privacy.clipping.traps.trial import Case


def later_rows(h: Tensor) -> Tensor:
    """Each row reads those before it; only row 4 has anything to say."""
    said = torch.zeros(len(h), 1)
    said[4:5] = 1.0
    return h + (said * h).cumsum(0) - said * h


def ranked(h: Tensor) -> Tensor:
    return h * (1 + h[:, :1].argsort(0).argsort(0))


def loudest(h: Tensor) -> Tensor:
    return h + h[h.square().sum(1).argmax()]


def nearest(h: Tensor) -> Tensor:
    apart = torch.cdist(h, h) + torch.eye(len(h)) * 1e3
    return h + 0.3 * h[apart.argmin(1)]


def whitened(h: Tensor) -> Tensor:
    spread = h.T @ h / len(h) + torch.eye(h.shape[1])
    return h @ torch.linalg.inv(spread)


def attending(h: Tensor) -> Tensor:
    return h + torch.softmax(h @ h.T, -1) @ h


def capacity(h: Tensor) -> Tensor:
    """Two experts take three rows each; who comes too late goes without."""
    chosen = (h[:, 0] > 0).long()
    place = F.one_hot(chosen, 2).cumsum(0).gather(1, chosen[:, None])[:, 0]
    return torch.where((place <= 2)[:, None], h * (1 + chosen[:, None]), 0 * h)


MIXES: dict[str, Mix] = {
    "half the batch's mean": lambda h: h + 0.5 * h.mean(0),
    "a hundredth of the batch's mean": lambda h: h + 0.01 * h.mean(0),
    "a thousandth of the batch's mean": lambda h: h + 0.001 * h.mean(0),
    "the batch's maximum": lambda h: h - h.amax(0),
    "the batch's minimum": lambda h: h - h.amin(0),
    "the batch's median": lambda h: h - h.median(0).values,
    "the batch's standard deviation": lambda h: h / (1 + h.std(0, correction=0)),
    "the batch's norm": lambda h: h / h.norm(),
    "a softmax over the batch": lambda h: h * torch.softmax(h, 0),
    "a running sum over rows": lambda h: h.cumsum(0),
    "a running maximum over rows": lambda h: h.cummax(0).values,
    "the row before": lambda h: h + F.pad(h, (0, 0, 1, 0))[:-1],
    "the row after": lambda h: h + F.pad(h, (0, 0, 0, 1))[1:],
    "rows rolled by one": lambda h: h.roll(1, 0),
    "rows flipped": lambda h: h.flip(0),
    "less the first row": lambda h: h - h[0],
    "less the last row": lambda h: h - h[-1],
    "row 4 read by later rows": later_rows,
    "rows sorted by value": lambda h: h[h[:, 0].argsort()],
    "each column sorted": lambda h: h.sort(0).values,
    "ranks among the rows": ranked,
    "the loudest row": loudest,
    "the nearest row": nearest,
    "whitening": whitened,
    "attention between rows": attending,
    "experts with a capacity": capacity,
    "the size of the batch": lambda h: h / len(h),
    "a sign by the batch's mean": lambda h: h * h.mean(0).sign(),
    "a quantile of the batch": lambda h: h.clamp(max=h.quantile(0.7)),
    "the first half scaled by the second": lambda h: (
        torch.cat([h[:3] * h[3:], h[3:]]) if len(h) > 3 else h
    ),
}
QUICK = {
    "half the batch's mean",
    "a thousandth of the batch's mean",
    "rows rolled by one",
    "rows sorted by value",
    "experts with a capacity",
    "attention between rows",
    "the size of the batch",
}
"""Mixes of which the quick suite tries the one with its gradient, too."""


def detached(mix: Mix) -> Mix:
    """Returns a mix whose influence has no gradient."""
    return lambda h: h + (mix(h) - h).detach()


def by_value() -> Iterator[Case]:
    """Yields each mix with its gradient and without."""
    for name, mix in MIXES.items():
        for way, each in (("", mix), (", detached", detached(mix))):
            slow = name not in QUICK and not way
            yield mixing(name + way, lambda each=each: net_trial(each), slow=slow)


def sorted_and_back(h: Tensor) -> Tensor:
    """Packs rows by value, as for recurrent layers, and undoes it: no row reads another."""
    order = h[:, 0].argsort()
    return (h[order] * 2)[order.argsort()]


def sequences() -> Iterator[Case]:
    """Yields models of token ids whose rows mix through padding and positions."""

    def trimmed(ids: Tensor) -> Tensor:
        return ids[:, : int((ids != 0).sum(1).max())]

    def padded_trial(between: Mix, **changes):
        ids = words()
        ids[:, 0] = 1
        for row, length in enumerate((7, 4, 6, 5, 3, 6)):
            ids[row, length:] = 0
        return words_trial(between, batches=[(ids,)], **changes)

    def trimming_losses(model, ids):
        logits = model(trimmed(ids))
        return logits.square().mean((1, 2))

    def last_padded(h: Tensor) -> Tensor:
        share = (h[:, -1:].norm(dim=-1, keepdim=True) < 1.7).float()
        return h + share * h.mean(0).detach()

    yield mixing(
        "mean over the longest row's length",
        lambda: padded_trial(torch.clone, losses=trimming_losses),
    )
    yield mixing("a mean of the batch where rows end early", lambda: padded_trial(last_padded))
    yield mixing(
        "a mean over batch and time", lambda: words_trial(lambda h: h - 0.1 * h.mean((0, 1)))
    )
    yield mixing(
        "time and batch confused", lambda: words_trial(lambda h: h + 0.2 * h.cumsum(0).detach())
    )
    yield mixing(
        "tokens of all rows in one line",
        lambda: words_trial(lambda h: h.flatten(0, 1).roll(1, 0).view_as(h)),
    )
    yield mixing(
        "positions that run on from row to row",
        lambda: words_trial(
            lambda h: h * (torch.arange(h.shape[0] * h.shape[1]).view(*h.shape[:2], 1) * 0.1).cos()
        ),
    )


def normalized(layer: nn.Module):
    return net_trial(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), layer))


def layers() -> Iterator[Case]:
    """Yields library layers that normalize over the batch."""
    yield mixing("BatchNorm1d", lambda: normalized(nn.BatchNorm1d(HIDDEN)))
    yield mixing("BatchNorm1d, momentum 0", lambda: normalized(nn.BatchNorm1d(HIDDEN, momentum=0)))
    yield mixing("BatchNorm1d, no affine", lambda: normalized(nn.BatchNorm1d(HIDDEN, affine=False)))
    yield mixing(
        "BatchNorm1d without running statistics, evaluating",
        lambda: evaluating(normalized(nn.BatchNorm1d(HIDDEN, track_running_stats=False))),
    )
    yield mixing("functional batch norm", lambda: net_trial(batch_norm))
    yield mixing("functional batch norm, detached", lambda: net_trial(detached(batch_norm)))
    yield mixing("attention along dimension 0", lambda: net_trial(AlongRows()))
    yield mixing("a recurrence along dimension 0", lambda: net_trial(Recurrent()))
    yield mixing(
        "a convolution along dimension 0", lambda: net_trial(lambda h: F.avg_pool1d(h.T, 3, 1, 1).T)
    )
    yield mixing(
        "layer norm of the whole batch", lambda: net_trial(lambda h: F.layer_norm(h, h.shape))
    )
    yield exact("rows sorted and put back", lambda: net_trial(sorted_and_back))


def batch_norm(h: Tensor) -> Tensor:
    return F.batch_norm(torch.cat([h, -0.5 * h + 0.1]), None, None, training=True)[: len(h)]


def evaluating(trial):
    trial.model.eval()
    return trial


class AlongRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.attention(h, h, h, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(HIDDEN, HIDDEN)

    def forward(self, h: Tensor) -> Tensor:
        return self.cells(h)[0]


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from by_value()
    yield from sequences()
    yield from layers()
