"""What is ordinary and must stay exact: sizes, precisions, engines, dropout, units of rows."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.calls import ce
from tests.privacy.clipping.traps.nets import (
    CLASSES,
    HIDDEN,
    ROWS,
    WIDTH,
    WORDS,
    Net,
    batch,
    classes,
    classified,
    either,
    exact,
    features,
    mixing,
    net_trial,
    next_words,
    words,
)
from tests.privacy.clipping.traps.trial import Case, Trial


def precise() -> Trial:
    trial = net_trial(tolerance=1e-9)
    trial.model.double()
    x, y = trial.batches[0]
    trial.batches = [(x.double(), y)]
    return trial


def rows(count: int, **changes: object) -> Trial:
    return net_trial(batches=[batch(count)], **changes)


def squeezing(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0].squeeze() - 1).square().view(-1)


def by_value(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """Python decides for each row what becomes of it."""
    logits = model(x)
    return torch.stack([z[0] if float(x[i, 0]) > 0 else z[1] ** 2 for i, z in enumerate(logits)])


class ByRow(nn.Module):
    """Rows that are small go another way, by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(HIDDEN, 4), nn.Linear(HIDDEN, 4)

    def forward(self, h: Tensor) -> Tensor:
        out = h.new_zeros(len(h), HIDDEN)
        small = h[:, 0] > 0
        out[small, :4] = self.small(h[small])
        out[~small, 4:] = self.large(h[~small])
        return out


def plain() -> Iterator[Case]:
    """Yields what is ordinary and must stay exact: sizes, precisions, engines, dropout."""
    for count in (1, 2, 3, 8, 9):
        yield exact(f"a batch of {count}", lambda count=count: rows(count))
    yield exact("as many rows as classes", lambda: rows(CLASSES))
    yield exact("as many rows as features", lambda: rows(WIDTH))
    yield exact("as many rows as hidden units", lambda: rows(HIDDEN))
    yield exact("equal rows", lambda: net_trial(batches=[(torch.ones(ROWS, WIDTH), classes())]))
    yield exact("a row of zeros", lambda: net_trial(batches=[(torch.eye(ROWS, WIDTH), classes())]))
    yield exact("float64", precise)
    for engine in ("two_pass", "instantiate", "loop", "auto"):
        yield exact(f"engine {engine}", lambda engine=engine: rows(ROWS, engine=engine))
        yield exact(
            f"dropout, engine {engine}",
            lambda engine=engine: net_trial(nn.Dropout(0.4), engine=engine, drawn=True),
        )
    yield exact("dropout", lambda: net_trial(nn.Dropout(0.4), drawn=True))
    yield exact(
        "a batch of one, dropout",
        lambda: net_trial(nn.Dropout(0.4), drawn=True, batches=[batch(1)]),
    )
    yield exact("one squeezed", lambda: rows(1, losses=squeezing))
    yield exact("six squeezed", lambda: rows(6, losses=squeezing))
    yield exact("large and small rows", lambda: net_trial(batches=[uneven()]))
    yield exact("python control flow for each row", lambda: net_trial(losses=by_value))
    yield either("rows that go two ways by an index", lambda: net_trial(ByRow()))
    yield exact(
        "autocast to bfloat16",
        lambda: rows(ROWS, context=autocast, tolerance=5e-2),
    )
    yield exact("three batches", lambda: net_trial(batches=[batch(n) for n in (6, 4, 5)]))
    yield exact("integers for inputs", lambda: net_trial(losses=integers))


def integers(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(F.one_hot(y, WIDTH).float() + 0 * x), y)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def uneven() -> tuple[Tensor, Tensor]:
    return features(WIDTH) * torch.logspace(-4, 4, ROWS)[:, None], classes()


def rows_as_units() -> Iterator[Case]:
    """Yields units of several rows, each with losses of its own."""
    units = torch.tensor([3, 0, 3, 1, 0, 1])

    def of_unit(model: nn.Module, one: tuple, number: int) -> Tensor:
        mine = units == torch.unique(units)[number]
        return classified(model, *(part[mine] for part in one)).sum()

    for engine in ("book_keeping", "two_pass", "instantiate", "loop"):
        yield exact(
            f"units of two rows, engine {engine}",
            lambda engine=engine: net_trial(units=units, alone=of_unit, engine=engine),
        )
    yield mixing(
        "units, and a detached mean over all",
        lambda: net_trial(lambda h: h - h.detach().mean(0), units=units, alone=of_unit),
    )
    paired = torch.tensor([0, 0, 1, 1, 2, 2])

    def of_pair(model: nn.Module, one: tuple, number: int) -> Tensor:
        return pairs(model, *(part[2 * number : 2 * number + 2] for part in one)).sum()

    def pairs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """A loss for each row that reads the other row of its unit."""
        z = model(x)
        return F.softplus(z[:, 0] - z.view(-1, 2, CLASSES).flip(1).reshape(-1, CLASSES)[:, 1])

    yield either(
        "losses that read the other row of their unit",
        lambda: net_trial(losses=pairs, units=paired, alone=of_pair),
    )


class Tied(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.leave = nn.Linear(HIDDEN, WORDS, bias=False)
        self.leave.weight = self.table.weight
        self.temperature = nn.Parameter(torch.tensor(scale))

    def forward(self, ids: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.table(ids))) * self.temperature


class TiedByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.table(ids)) @ self.table.weight.T


def of_words(model: nn.Module) -> Trial:
    return net_trial(model=model, batches=[(words(),)], losses=next_words)


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from plain()
    yield exact("tied, with a temperature", lambda: of_words(Tied(0.7)))
    yield exact("tied by hand", lambda: of_words(TiedByHand()))
    yield from rows_as_units()
