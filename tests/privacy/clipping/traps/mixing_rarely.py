"""Models whose rows mix only from some batch on, at some size, in some rows or for some values."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.privacy.clipping.traps.mixing import detached
from tests.privacy.clipping.traps.mixing_later import From, batches, with_mean
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    WIDTH,
    Mix,
    batch,
    classes,
    either,
    features,
    mixing,
    net_trial,
)
from tests.privacy.clipping.traps.trial import Case, Trial


def rarely() -> Iterator[Case]:
    """Yields models that mix rows only from some batch on, at some size, or for some values."""

    def later(start: int, count: int) -> Trial:
        return net_trial(From(start), batches=batches(count, 3))

    def sizes(mix: Mix, *rows: int) -> Trial:
        return net_trial(mix, batches=[batch(count) for count in rows])

    def extreme(h: Tensor) -> Tensor:
        return h + (h.abs().max() > 0.9999).float() * h.sum(0).detach()

    def quiet_then_loud() -> Trial:
        loud = (40 * features(5), batch()[1])
        return net_trial(extreme, batches=[(0.1 * features(5), batch()[1]), loud])

    def at_size(size: int, mix: Mix = with_mean) -> Mix:
        return lambda h: mix(h) if len(h) >= size else h

    yield mixing("a mean from the second batch on, of three", lambda: later(1, 3))
    yield mixing("a mean from the second batch on, of twenty", lambda: later(1, 20), slow=True)
    yield mixing("a mean from the tenth batch on, of twenty", lambda: later(9, 20), slow=True)
    yield mixing("a mean from the twentieth batch on", lambda: later(19, 20), slow=True)
    yield mixing(
        "a detached mean at five rows and more from the thirteenth batch on, of twenty",
        lambda: net_trial(FromLarge(12), batches=batches(20)),
        slow=True,
    )
    yield mixing("a mean at five rows and more", lambda: sizes(at_size(5), 6))
    yield mixing(
        "a detached mean at five rows and more", lambda: sizes(at_size(5, detached(with_mean)), 6)
    )
    yield mixing(
        "a mean at five rows and more, after a batch of three", lambda: sizes(at_size(5), 3, 6)
    )
    yield mixing(
        "a detached mean at five rows and more, after a batch of three",
        lambda: sizes(at_size(5, detached(with_mean)), 3, 6),
    )
    for engine in ("book_keeping", "loop"):
        yield mixing(
            f"{engine}: a detached mean at nine rows and more, after a batch of four",
            lambda engine=engine: net_trial(
                at_size(9, detached(with_mean)), batches=[batch(4), batch(12)], engine=engine
            ),
        )
    yield mixing(
        "a mean that no value shows at five rows and more, of sixteen",
        lambda: sizes(at_size(5, lambda h: h + h.mean(0) - h.mean(0).detach()), 16),
    )
    yield mixing("a mean after a batch of one", lambda: sizes(with_mean, 1, 6))
    yield mixing("a detached mean after a batch of one", lambda: sizes(detached(with_mean), 1, 6))
    yield mixing(
        "less the first row, detached, after a batch of one",
        lambda: sizes(detached(lambda h: h - h[0]), 1, 6),
    )
    yield mixing("a detached sum where a value is extreme", quiet_then_loud)
    yield either("batches of one alone", lambda: sizes(with_mean, 1, 1))
    yield mixing("rows in pairs", lambda: sizes(in_pairs, 6))
    yield mixing("rows in pairs, detached", lambda: sizes(detached(in_pairs), 6))


class FromLarge(nn.Module):
    """Mixes rows, unseen by a gradient, from a number of calls on and in large batches alone."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.calls, self.call = 0, call

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return detached(with_mean)(h) if self.calls > self.call and len(h) >= 5 else h


def in_pairs(h: Tensor) -> Tensor:
    """Rows 2 and 3, and 4 and 5, read each other."""
    pairs = h[2:].view(-1, 2, HIDDEN) if len(h) > 3 and len(h) % 2 == 0 else None
    return h if pairs is None else torch.cat([h[:2], h[2:] + pairs.flip(1).reshape(-1, HIDDEN)])


def in_order() -> Iterator[Case]:
    """Yields mixes by value on batches where each row happens to be in its place."""
    x = torch.linspace(-1, 1, 6)[:, None] * torch.ones(WIDTH)

    def trial(mix: Mix):
        trial = net_trial(mix, batches=[(x + 0.01 * features(WIDTH), classes())])
        with torch.no_grad():
            trial.model.enter.weight.copy_(torch.eye(HIDDEN, WIDTH) + 0.1)
        later = (features(WIDTH), classes())
        trial.batches = [*trial.batches, later]
        return trial

    order: dict[str, Mix] = {
        "rows sorted by value, at first in order": lambda h: h[h[:, 0].argsort()],
        "rows gathered by value, at first in order": lambda h: h.index_select(
            0, h.sum(1).detach().argsort()
        ),
        "columns sorted over rows, at first in order": lambda h: torch.cat(
            [h[:, :1].sort(0).values, h[:, 1:]], 1
        ),
        "the maximum so far, at first one's own": lambda h: torch.maximum(h, h.cummax(0).values),
    }
    for name, mix in order.items():
        yield mixing(name, lambda mix=mix: trial(mix))
        yield mixing(f"{name}, detached", lambda mix=mix: trial(detached(mix)))


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from rarely()
    yield from in_order()
