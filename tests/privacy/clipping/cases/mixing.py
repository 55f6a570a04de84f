"""Models whose rows read other rows: in each batch, in training only, at some sizes, by a state."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.cases.case import (
    Case,
    Trial,
    either,
    exact,
    mixing,
    mixing_gradients,
    rejected,
)
from tests.privacy.clipping.cases.nets import (
    HIDDEN,
    WIDTH,
    Mix,
    classes,
    features,
    net_trial,
    ragged,
    words_trial,
)


def later_rows(h: Tensor) -> Tensor:
    """Each row reads those before it; only row 2 contributes."""
    given = torch.zeros(len(h), 1)
    given[2:3] = 1.0
    return h + (given * h).cumsum(0) - given * h


def capacity(h: Tensor) -> Tensor:
    """Each of two experts takes the first two rows that choose it."""
    chosen = (h[:, 0] > 0).long()
    place = F.one_hot(chosen, 2).cumsum(0).gather(1, chosen[:, None])[:, 0]
    return torch.where((place <= 2)[:, None], h * (1 + chosen[:, None]), 0 * h)


def in_pairs(h: Tensor) -> Tensor:
    """Rows 2 and 3, and 4 and 5, read each other."""
    pairs = h[2:].view(-1, 2, HIDDEN) if len(h) > 3 and len(h) % 2 == 0 else None
    return h if pairs is None else torch.cat([h[:2], h[2:] + pairs.flip(1).reshape(-1, HIDDEN)])


def with_mean(h: Tensor) -> Tensor:
    return h + 0.5 * h.mean(0)


MIXES: dict[str, Mix] = {
    "half the batch's mean": with_mean,
    "a thousandth of the batch's mean": lambda h: h + 0.001 * h.mean(0),
    "the batch's maximum": lambda h: h - h.amax(0),
    "row 2 read by later rows": later_rows,
    "attention between rows": lambda h: h + torch.softmax(h @ h.T, -1) @ h,
    "experts with a capacity": capacity,
    "the size of the batch": lambda h: h / len(h),
    "a sign by the batch's mean": lambda h: h * h.mean(0).sign(),
    "rows in pairs": in_pairs,
    "mixup in a random order": lambda h: 0.7 * h + 0.3 * h[torch.randperm(len(h))],
}


def detached(mix: Mix) -> Mix:
    """Return a mix whose influence has no gradient."""
    return lambda h: h + (mix(h) - h).detach()


def sorted_and_back(h: Tensor) -> Tensor:
    """Sort rows by value, such as for packed sequences, and undo it: no row reads another."""
    order = h[:, 0].argsort()
    return (h[order] * 2)[order.argsort()]


def sequences() -> Iterator[Case]:
    """Yield models of token ids whose rows mix through padding and positions."""

    def trial(between: Mix, **changes) -> Trial:
        draw = lambda rows: (ragged(rows, 0, 1),)  # noqa: E731
        return words_trial(between, draw=draw, **changes)

    def trimmed(model, ids):
        longest = int((ids != 0).sum(1).max())
        return model(ids[:, :longest]).square().mean((1, 2))

    def last_padded(h):
        is_padding = (h[:, -1:].norm(dim=-1, keepdim=True) < 1.7).float()
        return h + is_padding * h.mean(0).detach()

    def positions(h):
        places = torch.arange(h.shape[0] * h.shape[1]).view(*h.shape[:2], 1)
        return h * (places * 0.1).cos()

    # Rows cut from a padded batch stay padded, but ``alone`` shows it; see test_checks.py.
    yield either("mean over the longest row's length", lambda: trial(torch.clone, losses=trimmed))
    yield mixing("a mean of the batch if rows end early", lambda: trial(last_padded))
    yield mixing(
        "tokens of all rows in one line",
        lambda: trial(lambda h: h.flatten(0, 1).roll(1, 0).view_as(h)),
    )
    yield mixing("positions that run on from row to row", lambda: trial(positions))


class AlongRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.attention(h, h, h, need_weights=False)[0]


def batch_norm(h: Tensor) -> Tensor:
    return F.batch_norm(torch.cat([h, -0.5 * h + 0.1]), None, None, training=True)[: len(h)]


def layers() -> Iterator[Case]:
    """Yield layers of torch that normalize over the batch, or run along it."""

    def normalized(layer: nn.Module) -> Trial:
        return net_trial(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), layer))

    yield rejected("BatchNorm1d", lambda: normalized(nn.BatchNorm1d(HIDDEN)))
    without = lambda: nn.BatchNorm1d(HIDDEN, track_running_stats=False).eval()  # noqa: E731
    yield rejected("BatchNorm1d without running statistics", lambda: normalized(without()))
    yield mixing("functional batch norm, detached", lambda: net_trial(detached(batch_norm)))
    yield mixing("attention along dimension 0", lambda: net_trial(AlongRows()))
    yield mixing(
        "layer norm of the whole batch", lambda: net_trial(lambda h: F.layer_norm(h, h.shape))
    )
    yield exact("rows sorted and put back", lambda: net_trial(sorted_and_back))


class InTraining(nn.Module):
    """Mixes rows in training mode only."""

    def __init__(self, mix: Mix, dropout: float = 0.0) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.mix = mix

    def forward(self, h: Tensor) -> Tensor:
        h = self.drop(h)
        return self.mix(h) if self.training else h


class SharedMask(nn.Module):
    """One random mask for all rows."""

    def forward(self, h: Tensor) -> Tensor:
        return h * (torch.rand(1, HIDDEN) > 0.3) if self.training else h


class OwnNoise(nn.Module):
    """Draws noise, and adds a sum of all rows in training mode only."""

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return h
        h = h * (torch.rand(h.shape) > 0.3)
        return h + 0.3 * h.detach().sum(0)


def training() -> Iterator[Case]:
    """Yield models that mix rows in training only, and models that draw."""
    yield mixing("a mean in training", lambda: net_trial(InTraining(with_mean)))
    yield mixing(
        "a detached mean in training, dropout",
        lambda: net_trial(InTraining(detached(with_mean), 0.3), drawn=True),
    )
    yield mixing(
        "own noise and a detached sum in training", lambda: net_trial(OwnNoise(), drawn=True)
    )
    # Randomness other than dropout cannot be turned off to compare a row with itself.
    yield either("one mask for all rows", lambda: net_trial(SharedMask(), drawn=True))


class State(nn.Module):
    """What one batch leaves in a buffer, the next one reads."""

    def __init__(self, update: Callable[[Tensor, Tensor], Tensor], *, in_place: bool = False):
        super().__init__()
        self.register_buffer("state", torch.zeros(HIDDEN), persistent=False)
        self.update, self.in_place = update, in_place

    def forward(self, h: Tensor) -> Tensor:
        out = h + self.state
        new = self.update(self.state, h.detach())
        if self.in_place:
            self.state.copy_(new)
        else:
            self.state = new
        return out


class Remembering(nn.Module):
    """Keeps its last input in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        out = h if self.last is None else h + self.last.mean(0)
        self.last = h.detach()
        return out


class Counting(nn.Module):
    """Counts its calls in a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * 2


def states() -> Iterator[Case]:
    """Yield models that carry something from one forward pass into the next."""
    average = lambda old, h: 0.9 * old + 0.1 * h.mean(0)  # noqa: E731
    for name, in_place in (("replaced", False), ("written in place", True)):
        yield rejected(
            f"a running mean, {name}",
            lambda i=in_place: net_trial(State(average, in_place=i), sizes=(6, 6, 6)),
        )
    yield rejected("the last batch in an attribute", lambda: net_trial(Remembering(), sizes=(6, 6)))
    yield either("a counter of calls", lambda: net_trial(Counting(), sizes=(6, 6)))


def sizes() -> Iterator[Case]:
    """Yield models that mix rows at some sizes or for some values only."""

    def at_five(mix: Mix) -> Mix:
        return lambda h: mix(h) if len(h) >= 5 else h

    def extreme(h: Tensor) -> Tensor:
        return h + (h.abs().max() > 0.9999).float() * h.sum(0).detach()

    def quiet_then_loud() -> Trial:
        quiet, loud = (0.1 * features(6, WIDTH), classes(6)), (40 * features(6, WIDTH), classes(6))
        draw = lambda rows: (0.1 * features(rows, WIDTH), classes(rows))  # noqa: E731
        return net_trial(extreme, draw=draw, batches=[quiet, loud])

    for count in ((6,), (3, 6), (1, 6)):
        yield mixing(
            f"a detached mean at five rows and more, batches of {count}",
            lambda c=count: net_trial(at_five(detached(with_mean)), sizes=c),
        )
    yield mixing_gradients(
        "a mean that no loss shows, at five rows and more",
        lambda: net_trial(at_five(lambda h: h + h.mean(0) - h.mean(0).detach()), sizes=(16,)),
    )
    yield mixing("a detached sum if a value is extreme", quiet_then_loud)
    yield either("a mean, batches of one", lambda: net_trial(with_mean, sizes=(1, 1)))


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for name, mix in MIXES.items():
        yield mixing(name, lambda m=mix: net_trial(m))
        yield mixing(f"{name}, detached", lambda m=mix: net_trial(detached(m)))
    yield from sequences()
    yield from layers()
    yield from training()
    yield from states()
    yield from sizes()
