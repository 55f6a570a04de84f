"""Batches, arguments and returns: what carries rows, what does not, and what is not a batch."""

from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from tests.privacy.clipping.cases.case import (
    Case,
    Trial,
    exact,
    mixing,
    rejected,
    unbatched,
)
from tests.privacy.clipping.cases.nets import (
    CLASSES,
    HIDDEN,
    ROWS,
    WIDTH,
    Built,
    Net,
    ce,
    classes,
    classified,
    features,
    net_trial,
)

Scores = namedtuple("Scores", "logits hidden")


class Flexible(Net):
    """Takes its features, and returns its logits, in any form."""

    def __init__(self, give: Callable[[Tensor, Tensor], Any] = lambda z, h: z) -> None:
        super().__init__()
        self.give = give

    def forward(self, x: Any, *rest: Any, scale: Any = None, **more: Any) -> Any:
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, list | tuple) else x
        h = torch.tanh(self.enter(x))
        h = h if scale is None else h * scale
        return self.give(self.leave(h), h)


def called(call: Callable[[nn.Module, Tensor], Tensor], **changes: Any) -> Trial:
    return net_trial(model=Flexible(), losses=lambda m, x, y: ce(call(m, x), y), **changes)


def arguments() -> Iterator[Case]:
    """Yield ways to give a model its rows."""
    scale = torch.linspace(0, 1, HIDDEN)
    table: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
        "rows in a dictionary": lambda m, x: m({"x": x}),
        "rows by keyword": lambda m, x: m(x=x),
        "a 0-dimensional tensor next to the rows": lambda m, x: m(x, scale=torch.tensor(0.5)),
        "one vector for all rows": lambda m, x: m(x, scale=scale),
        "a string next to the rows": lambda m, x: m(x, mode="train"),
    }
    for name, call in table.items():
        yield exact(name, lambda c=call: called(c))
    yield exact(
        "one vector for all rows, as wide as rows are many",
        lambda: called(lambda m, x: m(x, scale=scale), sizes=(HIDDEN,)),
    )
    mixed: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
        "the batch's mean as an argument": lambda m, x: m(x, scale=x.mean().view(1, 1)),
        "the batch's mean as an argument of each row": lambda m, x: m(
            x, scale=x.mean().expand(len(x), 1)
        ),
        "rows less their mean before the call": lambda m, x: m(x - x.mean(0)),
        "rows scaled by the batch before the call": lambda m, x: m(x / x.norm()),
    }
    for name, call in mixed.items():
        yield mixing(name, lambda c=call: called(c))


def outputs() -> Iterator[Case]:
    """Yield forms in which models return what they computed."""

    def given(give: Callable[[Tensor, Tensor], Any], take: Callable[[Any], Tensor]) -> Trial:
        return net_trial(model=Flexible(give), losses=lambda m, x, y: ce(take(m(x)), y))

    forms: dict[str, tuple[Callable, Callable]] = {
        "logits in a dictionary": (lambda z, h: {"a": z}, lambda o: o["a"]),
        "a mean next to the logits, unread": (lambda z, h: (z, h.mean(0)), lambda o: o[0]),
        "logits transposed": (lambda z, h: z.T, lambda o: o.T),
        "logits in a closure": (lambda z, h: lambda: z, lambda o: o()),
    }
    for name, (give, take) in forms.items():
        yield exact(name, lambda g=give, t=take: given(g, t))
    mixed: dict[str, tuple[Callable, Callable]] = {
        "a detached mean next to the logits, read": (
            lambda z, h: (z, h.detach().mean(0)),
            lambda o: o[0] * o[1][:3],
        ),
        "a float of the batch next to the logits, read": (
            lambda z, h: (z, h.norm().item()),
            lambda o: o[0] / o[1],
        ),
    }
    for name, (give, take) in mixed.items():
        yield mixing(name, lambda g=give, t=take: given(g, t))


RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "the mean loss": torch.mean,
    "losses in a column": lambda losses: losses[:, None],
    "detached losses": torch.detach,
    "None": lambda losses: None,
}


def not_a_batch() -> Iterator[Case]:
    """Yield returns that are not one loss per row, and batches that are not rows."""
    for name, change in RETURNED.items():
        yield rejected(
            f"returned: {name}",
            lambda c=change: net_trial(losses=lambda m, x, y: c(classified(m, x, y))),
        )
    yield rejected(
        "labels in a Python list",
        lambda: net_trial(
            losses=lambda m, x, y: ce(m(x), torch.tensor(y)),
            draw=lambda rows: (features(rows, WIDTH), classes(rows).tolist()),
        ),
    )
    yield rejected(
        "losses that are written for six rows",
        lambda: net_trial(losses=lambda m, x, y: ce(m(x).view(ROWS, 3), y)),
    )
    yield rejected("a batch drawn inside", lambda: net_trial(losses=drawn_inside))


def drawn_inside(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Draw other rows at each call, such as from a loader."""
    counter = vars(model).setdefault("drawn", [])
    counter.append(1)
    return classified(model, x + len(counter) * features(len(x), WIDTH), y)


class Wide(Net):
    """As many classes as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.leave = nn.Linear(HIDDEN, ROWS)


def wide(losses: Callable[..., Tensor]) -> Trial:
    draw = lambda rows: (features(rows, WIDTH), torch.randint(0, ROWS, (rows,)))  # noqa: E731
    return net_trial(model=Wide(), losses=losses, draw=draw)


def square(m: nn.Module, ids: Tensor) -> Tensor:
    h = m.table(ids) + m.places(torch.arange(6))
    h = h + m.attention(h, h, h, attn_mask=torch.ones(6, 6).triu(1).bool())[0]
    return m.leave(torch.tanh(h @ m.weights))


def as_long_as_the_batch() -> Iterator[Case]:
    """Yield tensors that are as long as the batch and are not rows of it."""
    weights, shifts = torch.linspace(0.2, 2, ROWS), torch.linspace(-1, 1, ROWS)
    plain: dict[str, Callable[..., Tensor]] = {
        "class weights and class shifts": lambda m, x, y: ce(m(x) + shifts, y, weight=weights),
        "a cost of each class for each other": lambda m, x, y: (
            m(x).softmax(1) * torch.outer(weights, shifts)[y]
        ).sum(1),
    }
    for name, losses in plain.items():
        yield exact(name, lambda each=losses: wide(each))
    yield mixing(
        "class weights as many as rows, and a mean",
        lambda: wide(lambda m, x, y: ce(m(x), y, weight=weights) / ce(m(x), y).detach().mean()),
    )

    def everything_is_six() -> Trial:
        def losses(model: nn.Module, ids: Tensor) -> Tensor:
            return ce(model(ids).mT, ids.roll(-1, 1), weight=weights).mean(1)

        draw = lambda rows: (torch.randint(0, 6, (rows, 6)),)  # noqa: E731
        model = Built(
            square,
            table=nn.Embedding(6, 6),
            places=nn.Embedding(6, 6),
            weights=torch.randn(6, 6) * 0.3,
            attention=nn.MultiheadAttention(6, 2, batch_first=True),
            leave=nn.Linear(6, 6),
        )
        return net_trial(model=model, losses=losses, draw=draw)

    yield exact("everything is six", everything_is_six)


@dataclass
class Data:
    rows: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    rows: Any


CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "a model output": (lambda z: SequenceClassifierOutput(logits=z), lambda o: o.logits),
    "a dataclass": (Data, lambda o: o.rows),
    "nested containers": (
        lambda z: Data([{"a": SimpleNamespace(b=(Frozen({"rows": z}),))}]),
        lambda o: o.rows[0]["a"].b[0].rows["rows"],
    ),
}


def containers() -> Iterator[Case]:
    """Yield containers of rows, around a module of layers only and a module with a raw weight."""
    for name, (give, take) in CONTAINERS.items():
        yield exact(
            f"logits in {name}",
            lambda g=give, t=take: net_trial(
                model=Flexible(lambda z, h: g(z)), losses=lambda m, x, y: ce(t(m(x)), y)
            ),
        )
        yield unbatched(
            f"rows and logits in {name}, with a raw weight",
            lambda g=give, t=take: net_trial(
                model=Built(
                    lambda m, rows: g(m.leave(torch.tanh(t(rows) @ m.weight))),
                    weight=torch.randn(WIDTH, HIDDEN),
                    leave=nn.Linear(HIDDEN, CLASSES),
                ),
                losses=lambda m, x, y: ce(t(m(g(x))), y),
            ),
        )


def gathered() -> Iterator[Case]:
    """Yield rows that are gathered into one line."""

    def graphs(model: nn.Module, nodes: Tensor) -> Tensor:
        """Nodes of all graphs in one line; each graph's loss is its nodes' sum."""
        scores = model(nodes.flatten(0, 1)).square().sum(1)
        graph = torch.arange(len(nodes)).repeat_interleave(2)
        return torch.zeros(len(nodes)).index_add(0, graph, scores)

    yield exact(
        "graphs of two nodes",
        lambda: net_trial(losses=graphs, draw=lambda rows: (features(rows, 2, WIDTH),)),
    )


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    yield from arguments()
    yield from outputs()
    yield from containers()
    yield from not_a_batch()
    yield from as_long_as_the_batch()
    yield from gathered()
