"""Unusual arguments, outputs and returns of models and losses."""

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WIDTH,
    Net,
    batch,
    classified,
    either,
    exact,
    features,
    mixing,
    net_trial,
)
from tests.privacy.clipping.traps.trial import Case, Trial

Scores = namedtuple("Scores", "logits hidden")


def ce(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


class Flexible(Net):
    """Takes its features in any form, and gives its logits in any form."""

    def __init__(self, give: Callable[[Tensor, Tensor], Any] = lambda z, h: z) -> None:
        super().__init__()
        self.give = give

    def forward(self, x: Any, *rest: Any, scale: Any = None, **more: Any) -> Any:
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, list | tuple) else x
        h = torch.tanh(self.enter(x))
        h = h if scale is None else h * scale
        return self.give(self.leave(h), h)


def called(call: Callable[[nn.Module, Tensor], Tensor], **changes: Any) -> Trial:
    return net_trial(model=Flexible(), losses=lambda model, x, y: ce(call(model, x), y), **changes)


def given(give: Callable[[Tensor, Tensor], Any], take: Callable[[Any], Tensor]) -> Trial:
    return net_trial(model=Flexible(give), losses=lambda model, x, y: ce(take(model(x)), y))


class PlacesFirst(nn.Module):
    """Takes places, one for all rows, before the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.table = nn.Linear(HIDDEN, 3), nn.Embedding(LENGTH, HIDDEN)

    def forward(self, places: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.dense(h + self.table(places)))


def places_first(length: int) -> Trial:
    def losses(model: nn.Module, h: Tensor) -> Tensor:
        return (model(torch.arange(length), h) - 0.1).square().mean((1, 2))

    return net_trial(model=PlacesFirst(), losses=losses, batches=[(features(length, HIDDEN),)])


def arguments() -> Iterator[Case]:
    """Yields ways to give a model its rows."""
    yield exact("rows in a dictionary", lambda: called(lambda m, x: m({"x": x})))
    yield exact("rows by keyword", lambda: called(lambda m, x: m(x=x)))
    yield exact("rows in a list", lambda: called(lambda m, x: m([x, x])))
    yield exact("rows and nothing", lambda: called(lambda m, x: m(x, None, None)))
    yield exact("a number beside the rows", lambda: called(lambda m, x: m(x, scale=0.5)))
    yield exact(
        "a tensor of no dimension beside the rows",
        lambda: called(lambda m, x: m(x, scale=torch.tensor(0.5))),
    )
    yield exact(
        "a row for all beside the rows",
        lambda: called(lambda m, x: m(x, scale=torch.linspace(0, 1, HIDDEN))),
    )
    yield exact(
        "a row for all, as wide as rows are many",
        lambda: called(
            lambda m, x: m(x, scale=torch.linspace(0, 1, HIDDEN)), batches=[batch(HIDDEN)]
        ),
    )
    yield exact("a string beside the rows", lambda: called(lambda m, x: m(x, mode="train")))
    yield mixing(
        "the batch's mean as an argument",
        lambda: called(lambda m, x: m(x, scale=x.mean(0, keepdim=True).mean(1, keepdim=True))),
    )
    yield mixing(
        "the batch's mean as an argument of each row",
        lambda: called(lambda m, x: m(x, scale=x.mean().expand(len(x), 1))),
    )
    yield mixing(
        "rows less their mean before the call", lambda: called(lambda m, x: m(x - x.mean(0)))
    )
    yield mixing(
        "rows scaled by the batch before the call", lambda: called(lambda m, x: m(x / x.norm()))
    )
    yield either("places for all before the rows", lambda: places_first(LENGTH))
    yield either("as many places as rows, before the rows", lambda: places_first(ROWS))


def outputs() -> Iterator[Case]:
    """Yields forms in which models give what they computed."""
    yield exact("logits in a dictionary", lambda: given(lambda z, h: {"a": z}, lambda o: o["a"]))
    yield exact("logits in a tuple", lambda: given(lambda z, h: (z, h), lambda o: o[0]))
    yield exact("logits with a name", lambda: given(Scores, lambda o: o.logits))
    yield exact("logits and a string", lambda: given(lambda z, h: (z, "z"), lambda o: o[0]))
    yield exact("both outputs used", lambda: given(Scores, lambda o: o.logits + o.hidden[:, :3]))
    yield either(
        "a mean beside the logits, unread",
        lambda: given(lambda z, h: (z, h.mean(0)), lambda o: o[0]),
    )
    yield mixing(
        "a detached mean beside the logits, read",
        lambda: given(lambda z, h: (z, h.detach().mean(0)), lambda o: o[0] * o[1][:3]),
    )
    yield mixing(
        "a mean loss beside the logits",
        lambda: given(lambda z, h: (z, h.square().mean()), lambda o: o[0] * (1 + o[1])),
    )
    yield mixing(
        "a float of the batch beside the logits",
        lambda: given(lambda z, h: (z, h.norm().item()), lambda o: o[0] / o[1]),
    )
    yield exact("logits transposed", lambda: given(lambda z, h: z.T, lambda o: o.T))
    yield exact(
        "logits in one line", lambda: given(lambda z, h: z.flatten(), lambda o: o.view(-1, 3))
    )


def misused(change: Callable[[Tensor], Any], **changes: Any) -> Trial:
    """Losses that are not one for each example."""

    def alone(model: nn.Module, one: tuple, row: int) -> Tensor:
        return classified(model, *(part[row : row + 1] for part in one))[0]

    return net_trial(
        losses=lambda model, x, y: change(classified(model, x, y)), alone=alone, **changes
    )


def returns() -> Iterator[Case]:
    """Yields what a closure must not return."""
    table: dict[str, Callable[[Tensor], Any]] = {
        "the mean loss": torch.mean,
        "the sum of losses": torch.sum,
        "losses in a column": lambda losses: losses[:, None],
        "detached losses": torch.detach,
        "losses as a list": lambda losses: list(losses.unbind()),
        "a python float": lambda losses: losses.mean().item(),
        "losses twice over": lambda losses: torch.cat([losses, losses]),
        "one loss of six": lambda losses: losses[:1],
        "nothing": lambda losses: None,
        "the mean loss in a vector": lambda losses: losses.mean()[None],
    }
    for name, change in table.items():
        yield mixing(f"returned: {name}", lambda each=change: misused(each))
    yield mixing("units of floats", lambda: misused(lambda losses: losses, units=torch.rand(ROWS)))
    yield mixing("too few units", lambda: misused(lambda losses: losses, units=torch.arange(3)))
    yield mixing("a batch drawn inside", lambda: net_trial(losses=drawn_inside))


def drawn_inside(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Draws other rows each time it is called, as a loader asked inside does."""
    counter = vars(model).setdefault("drawn", [])
    counter.append(1)
    return classified(model, x + len(counter) * features(WIDTH, rows=len(x)), y)


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from arguments()
    yield from outputs()
    yield from returns()
