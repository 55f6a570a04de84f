"""What is ordinary and must stay exact: sizes, precisions, dropout, units, micro-batches."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.cases.case import Batch, Case, Trial, either, exact, mixing
from tests.privacy.clipping.cases.nets import (
    CLASSES,
    HIDDEN,
    LENGTH,
    ROWS,
    WIDTH,
    WORDS,
    Net,
    Words,
    batch,
    ce,
    classes,
    features,
    net_trial,
    words_trial,
)


def float64() -> Trial:
    def draw(rows: int) -> Batch:
        x, y = batch(rows)
        return x.double(), y

    return net_trial(model=Net().double(), draw=draw)


def squeezing(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0].squeeze() - 1).square().view(-1)


def of_integers(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(F.one_hot(y, WIDTH).float() + 0 * x), y)


def canceling(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Losses that keep few digits of what they are computed from."""
    return (model(x).sum(1) + 3e3 - 3e3).square()


def uneven(rows: int) -> Batch:
    """Rows whose sizes are eight magnitudes apart."""
    sizes = torch.logspace(-4, 4, rows)[torch.randperm(rows)]
    return features(rows, WIDTH) * sizes[:, None], classes(rows)


def pairs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss for each row that reads the other row of its unit."""
    z = model(x)
    other = z.view(-1, 2, CLASSES).flip(1).reshape(-1, CLASSES)
    return F.softplus(z[:, 0] - other[:, 1])


class Chooser(Words):
    """Multiple choice: (b, choices, t) ids, flattened inside the model."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = super().forward(ids.flatten(0, 1))
        return logits.mean((1, 2)).view(ids.shape[:2])


def units() -> Iterator[Case]:
    """Yield privacy units of several rows."""
    for size in (2, 3):
        yield exact(f"units of {size} rows", lambda s=size: net_trial(rows_per_unit=s, sizes=(5,)))
        yield exact(
            f"texts, units of {size} rows", lambda s=size: words_trial(rows_per_unit=s, sizes=(5,))
        )
    yield exact("one unit of two rows", lambda: net_trial(rows_per_unit=2, sizes=(1, 1)))
    yield mixing(
        "units, and a detached mean over all",
        lambda: net_trial(lambda h: h - h.detach().mean(0), rows_per_unit=2),
    )
    yield exact(
        "losses that read the other row of their unit",
        lambda: net_trial(losses=pairs, rows_per_unit=2),
    )


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for count in (1, 2, 3, 8, 9):
        yield exact(f"a batch of {count}", lambda c=count: net_trial(sizes=(c,)))
    for name, count in {"classes": CLASSES, "features": WIDTH, "hidden": HIDDEN}.items():
        yield exact(f"as many rows as {name}", lambda c=count: net_trial(sizes=(c,)))
    yield exact(
        "equal rows", lambda: net_trial(draw=lambda rows: (torch.ones(rows, WIDTH), classes(rows)))
    )
    yield exact(
        "a row of zeros",
        lambda: net_trial(draw=lambda rows: (torch.eye(rows, WIDTH), classes(rows))),
    )
    yield exact("float64", float64)
    yield exact("dropout", lambda: net_trial(nn.Dropout(0.4), drawn=True, sizes=(6, 6, 6)))
    yield exact(
        "a batch of one, dropout", lambda: net_trial(nn.Dropout(0.4), drawn=True, sizes=(1,))
    )
    for count in (1, ROWS):
        yield exact(f"{count} squeezed", lambda c=count: net_trial(losses=squeezing, sizes=(c,)))
    yield exact("large and small rows", lambda: net_trial(draw=uneven))
    yield either("losses that cancel", lambda: net_trial(losses=canceling, tolerance=1e-3))
    yield exact(
        "autocast to bfloat16",
        lambda: net_trial(tolerance=5e-2, options={"autocast": torch.bfloat16}),
    )
    yield exact("three batches", lambda: net_trial(sizes=(6, 4, 5)))
    yield exact("integers for inputs", lambda: net_trial(losses=of_integers))
    yield exact(
        "texts in a dimension of their own",
        lambda: net_trial(
            model=Chooser(),
            losses=lambda model, ids: -model(ids).log_softmax(1)[:, 0],
            draw=lambda rows: (torch.randint(0, WORDS, (rows, 3, LENGTH)),),
        ),
    )
    yield from units()
