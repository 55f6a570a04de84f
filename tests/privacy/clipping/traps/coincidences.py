"""Closures on which a look at fewer rows may go astray, though nothing mixes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy
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
    either,
    exact,
    features,
    mixing,
    net_trial,
)
from tests.privacy.clipping.traps.trial import Case, Trial


class Wide(Net):
    """As many classes as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.leave = nn.Linear(HIDDEN, ROWS)


def wide(losses: Callable[..., Tensor]) -> Trial:
    rows = (features(WIDTH), torch.randint(0, ROWS, (ROWS,)))
    return net_trial(model=Wide(), losses=losses, batches=[rows])


def as_long_as_the_batch() -> Iterator[Case]:
    """Yields tensors that are as long as the batch and no rows of it."""
    weights, shifts = torch.linspace(0.2, 2, ROWS), torch.linspace(-1, 1, ROWS)
    table = torch.linspace(-1, 1, ROWS * 3).view(ROWS, 3)
    yield exact(
        "class weights and class shifts",
        lambda: wide(lambda m, x, y: ce(m(x) + shifts, y, weight=weights)),
    )
    yield exact(
        "a table with as many entries as rows",
        lambda: wide(lambda m, x, y: (m(x)[:, :3] - table[y]).square().sum(1)),
    )
    yield exact(
        "a cost of each class for each other",
        lambda: wide(lambda m, x, y: (m(x).softmax(1) * torch.outer(weights, shifts)[y]).sum(1)),
    )
    yield exact("a teacher as wide as rows are many", lambda: taught(nn.Linear(WIDTH, ROWS)))
    yield exact(
        "a teacher's buffers as long as the batch",
        lambda: taught(nn.Sequential(nn.Linear(WIDTH, ROWS), nn.BatchNorm1d(ROWS)).eval()),
    )
    yield exact("a constant inside as long as the batch", lambda: wide(constant_inside))
    yield mixing(
        "class weights as many as rows, and a mean",
        lambda: wide(lambda m, x, y: ce(m(x), y, weight=weights) / ce(m(x), y).detach().mean()),
    )


def taught(teacher: nn.Module) -> Trial:
    teacher.requires_grad_(False)

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - teacher(x)).square().sum(1)

    return wide(losses)


def constant_inside(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y, weight=torch.tensor([0.5, 1.0, 2.0, 0.7, 1.0, 3.0]))


def insisting(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    assert x.shape[0] == ROWS, "this closure was written for six rows"
    return ce(model(x), y)


def by_number(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x), y) * {ROWS: 0.5}[len(x)]


class Unsuited(Exception):
    """What a user's code raises."""


def raising(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if len(x) != ROWS:
        raise Unsuited
    return ce(model(x), y)


def by_gathering(logits: Tensor, y: Tensor) -> Tensor:
    return -logits.log_softmax(1).gather(1, y[:, None])[:, 0]


def scripted() -> Callable[..., Tensor]:
    loss = torch.jit.script(by_gathering)
    return lambda model, x, y: loss(model(x), y)


def alone(model: nn.Module, one: tuple, row: int) -> Tensor:
    x, y = (part[row : row + 1] for part in one[:2])
    return ce(model(x), y)[0]


def insistent() -> Iterator[Case]:
    """Yields closures that fail on other numbers of rows, each in its way."""

    def trial(losses: Callable[..., Tensor], factor: float = 1.0) -> Trial:
        return net_trial(losses=losses, alone=lambda *one: factor * alone(*one))

    yield exact("an assertion on the number of rows", lambda: trial(insisting))
    yield exact("a dictionary by the number of rows", lambda: trial(by_number, 0.5))
    yield exact("an exception of one's own", lambda: trial(raising))
    yield exact("a scripted loss", lambda: trial(scripted()))
    yield exact("labels in a numpy array", numpy_labels)


def numpy_labels() -> Trial:
    def losses(model: nn.Module, x: Tensor, y: numpy.ndarray) -> Tensor:
        return ce(model(x), torch.from_numpy(y))

    return net_trial(losses=losses, batches=[(features(WIDTH), classes().numpy())])


def in_order_of_size(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Sorts rows before the call, and puts the losses back."""
    order = x.square().sum(1).argsort()
    losses = ce(model(x[order]), y[order])
    return losses[order.argsort()]


def some_rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses = x.new_zeros(len(x))
    some = y > 0
    losses[some] = ce(model(x[some]), y[some])
    return losses


def in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x.clamp_(-2, 2)
    return ce(model(x), y)


def canceling(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Losses that keep few digits of what they are computed from."""
    return (model(x).sum(1) + 3e3 - 3e3).square()


def vanishing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Losses that are zero but for rounding, their gradients not."""
    z = model(x)
    return ce(z, y) - ce(z.detach(), y)


def evaluating_reference(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        model.eval()
        before = model(x)
        model.train()
    return (model(x) - 0.5 * before).square().sum(1)


def requiring(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ce(model(x.clone().requires_grad_()), y)


def noting() -> Callable[..., Tensor]:
    history: list[float] = []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = ce(model(x), y)
        history.append(float(each.detach().mean()))
        return each

    return losses


def roundabout() -> Iterator[Case]:
    """Yields closures that reach their losses by a detour."""
    table: dict[str, Callable[..., Any]] = {
        "rows clamped in place": in_place,
        "losses that cancel": canceling,
        "losses of zero with a gradient": vanishing,
        "a reference while evaluating": evaluating_reference,
        "inputs that require a gradient": requiring,
        "means noted for a chart": noting(),
    }
    for name, losses in table.items():
        yield exact(name, lambda each=losses: net_trial(losses=each))
    yield either(
        "rows sorted before the call and put back", lambda: net_trial(losses=in_order_of_size)
    )
    yield either("some rows alone through the model", lambda: net_trial(losses=some_rows))
    yield exact("a dropout and a reference while evaluating", dropped_reference)
    yield exact("a loss that is not a number for one row", not_a_number)


def dropped_reference() -> Trial:
    return net_trial(
        nn.Dropout(0.3), losses=evaluating_reference, drawn=True, batches=[batch(), batch()]
    )


def not_a_number() -> Trial:
    """0 / 0 for a row without labels: it has no part in the sum."""

    def losses(model: nn.Module, x: Tensor, y: Tensor, count: Tensor) -> Tensor:
        return ce(model(x), y) * count / count

    def finite(model: nn.Module, one: tuple, row: int) -> Tensor:
        x, y, count = (part[row : row + 1] for part in one)
        return (ce(model(x), y) * (count > 0))[0]

    counts = torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0, 1.0])
    return net_trial(losses=losses, alone=finite, batches=[(features(WIDTH), classes(), counts)])


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from as_long_as_the_batch()
    yield from insistent()
    yield from roundabout()
