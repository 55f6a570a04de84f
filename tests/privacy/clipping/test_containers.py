"""Rows that mix, detached, in a model of ordinary layers: refused in whatever they are handed.

How far one record moves the clipped sum is measured by leaving it out: at most C. Activations
divided by the detached maximum of their batch move it by several C, and no gradient shows it.
"""

from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from dpft.errors import RunError
from dpft.privacy.clipping import PerExampleClipper
from tests.slowness import slow, slow_but, slow_but_each

ROWS, WIDTH, HIDDEN, CLASSES, NORM = 9, 5, 8, 3, 0.3
ENGINES = ("book_keeping", "two_pass", "instantiate", "loop")


@dataclass
class Data:
    logits: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Any


class Slots:
    __slots__ = ("__hidden",)

    def __init__(self, logits: Any) -> None:
        self.__hidden = logits

    @property
    def logits(self) -> Any:
        return self.__hidden


class OfSlots(Slots):
    """Keeps a name in its ``__dict__``, the rest in its base's slot."""

    def __init__(self, logits: Any) -> None:
        super().__init__(logits)
        self.name = "of slots"


class Lazy:
    def __init__(self, logits: Any) -> None:
        self.kept = [logits]

    @property
    def logits(self) -> Any:
        return self.kept[0]


class OwnDict(dict):
    @property
    def logits(self) -> Any:
        return self["logits"]


class Attributed(dict):
    def __init__(self, logits: Any) -> None:
        self.logits = logits


class OwnList(list):
    pass


class OwnTuple(tuple):
    pass


class Chained:
    """Holds itself, through a list and a dict."""

    def __init__(self, logits: Any) -> None:
        self.logits, self.around = logits, [{"self": self}]


Named = namedtuple("Named", "logits hidden")

CONTAINERS: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda z: z, lambda o: o),
    "dict": (lambda z: {"logits": z}, lambda o: o["logits"]),
    "tuple": (lambda z: (z, None), lambda o: o[0]),
    "named tuple": (lambda z: Named(z, 2), lambda o: o.logits),
    "model output": (lambda z: SequenceClassifierOutput(logits=z), lambda o: o.logits),
    "dataclass": (Data, lambda o: o.logits),
    "frozen dataclass with slots": (Frozen, lambda o: o.logits),
    "namespace": (lambda z: SimpleNamespace(logits=z), lambda o: o.logits),
    "private slots": (Slots, lambda o: o.logits),
    "slots of a base": (OfSlots, lambda o: o.logits),
    "lazy property": (Lazy, lambda o: o.logits),
    "dict of its own class": (lambda z: OwnDict(logits=z), lambda o: o.logits),
    "attribute of a dict": (Attributed, lambda o: o.logits),
    "list of its own class": (lambda z: OwnList([z]), lambda o: o[0]),
    "tuple of its own class": (lambda z: OwnTuple([z]), lambda o: o[0]),
    "ordered dict": (lambda z: OrderedDict(a=1, b=z), lambda o: o["b"]),
    "user dict": (lambda z: UserDict(logits=z), lambda o: o["logits"]),
    "read-only dict": (lambda z: MappingProxyType({"a": z}), lambda o: o["a"]),
    "deque": (lambda z: deque([z], 2), lambda o: o[0]),
    "in one another": (
        lambda z: Data([{"a": SimpleNamespace(b=(Frozen(OwnDict(c=z)),))}]),
        lambda o: o.logits[0]["a"].b[0].logits["c"],
    ),
    "holds itself": (Chained, lambda o: o.logits),
    "columns first": (lambda z: Data(z.T), lambda o: o.logits.T),
    "in one line": (lambda z: Data(z.flatten()), lambda o: o.logits.view(-1, CLASSES)),
    "columns in one line": (
        lambda z: Data(z.T.flatten()),
        lambda o: o.logits.view(CLASSES, -1).T,
    ),
}
STATISTICS = {
    "maximum": lambda h: h / h.detach().abs().max(),
    "minimum": lambda h: h * (1 + h.detach().min()),
    "median": lambda h: h * (1 + h.detach().norm(dim=1).median()),
    "largest row alone": lambda h: (
        h * (1 + 9 * (h.detach().norm(dim=1) == h.detach().norm(dim=1).max()).float()[:, None])
    ),
    "second largest": lambda h: h * (1 + h.detach().norm(dim=1).topk(min(2, len(h))).values[-1]),
    "count above a value": lambda h: h / (1 + (h.detach()[:, 0] > 0).sum()),
    "ranks": lambda h: h * (1 + h.detach()[:, :1].argsort(0).argsort(0)),
    "python's number": lambda h: h / h.detach().abs().max().item(),
}


class Net(nn.Module):
    """Ordinary dense layers; takes and gives its rows in some container."""

    def __init__(self, mix: Any = None, give: Any = None, take: Any = None) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        keep = lambda value: value  # noqa: E731
        self.mix, self.give, self.take = mix or keep, give or keep, take or keep

    def forward(self, x: Any) -> Any:
        return self.give(self.leave(torch.tanh(self.mix(self.enter(self.take(x))))))


def net(*args: Any) -> Net:
    torch.manual_seed(0)
    return Net(*args)


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, WIDTH, generator=generator)
    x[rows // 2] *= 8
    return x, torch.randint(0, CLASSES, (rows,), generator=generator)


def clipped(model: nn.Module, losses: Any, engine: str, units: Tensor | None = None) -> Any:
    with PerExampleClipper(model, NORM, engine=engine) as clipper:
        norms = clipper.accumulate(losses, units)
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    return norms, gradients


def classified(model: nn.Module, x: Tensor, y: Tensor, give: Any, take: Any) -> Any:
    return lambda: F.cross_entropy(take(model(give(x))), y, reduction="none")


def keep(value: Any) -> Any:
    return value


def test_what_is_refused_would_move_the_sum_by_more_than_the_clipping_norm():
    """A backward pass for each row of the batch, as every engine would clip it."""

    def summed(x: Tensor, y: Tensor) -> list[Tensor]:
        losses = F.cross_entropy(model(x), y, reduction="none")
        total = [torch.zeros_like(p) for p in model.parameters()]
        for loss in losses:
            found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            norm = torch.stack([g.norm() for g in found]).norm()
            total = [t + g * (NORM / norm).clamp(max=1) for t, g in zip(total, found, strict=True)]
        return total

    model, (x, y) = net(STATISTICS["maximum"]), data(40)
    others = torch.arange(40) != 20
    apart = [a - b for a, b in zip(summed(x, y), summed(x[others], y[others]), strict=True)]
    assert torch.stack([a.norm() for a in apart]).norm() > 3 * NORM


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_rows_that_mix_are_refused_in_any_output(name, engine):
    give, take = CONTAINERS[name]
    model, (x, y) = net(STATISTICS["maximum"], give), data()
    with pytest.raises(RunError, match="for one example changes with the other"):
        clipped(model, classified(model, x, y, keep, take), engine)
    assert model.enter.weight.grad is None


@pytest.mark.parametrize("name", [name for name in CONTAINERS if "in one line" not in name])
@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_rows_that_mix_are_refused_in_any_argument(name, engine):
    if name == "columns first":
        pytest.skip("the first dimension of the first argument is the batch by contract")
    give, take = CONTAINERS[name]
    model, (x, y) = net(STATISTICS["maximum"], None, take), data()
    with pytest.raises(RunError, match="for one example changes with the other"):
        clipped(model, classified(model, x, y, give, keep), engine)


@pytest.mark.parametrize(("name", "engine"), slow_but_each(CONTAINERS, ENGINES))
def test_honest_rows_pass_in_any_output_and_argument_and_give_the_loops_sum(name, engine):
    give, take = CONTAINERS[name]
    shaped = name == "columns first" or "in one line" in name
    model, (x, y) = net(None, give, keep if shaped else take), data()
    losses = classified(model, x, y, keep if shaped else give, take)
    norms, sums = clipped(model, losses, engine)
    plain = net()
    expected, wanted = clipped(plain, classified(plain, x, y, keep, keep), "loop")
    assert torch.allclose(norms, expected, rtol=1e-4)
    for got, own in zip(sums, wanted, strict=True):
        assert torch.allclose(got, own, rtol=1e-4, atol=1e-6)


def sealed_outputs() -> dict[str, tuple[Any, str]]:
    def closed(z: Tensor) -> Any:
        return lambda: z

    def generated(z: Tensor) -> Any:
        yield z

    class Local:
        pass

    def on_a_class(z: Tensor) -> Any:
        Local.logits = z
        return {"own": z.detach() * 0 + 1, "type": Local}

    def attributed(z: Tensor) -> Tensor:
        decoy = torch.zeros(len(z), 1)
        decoy.logits = z
        return decoy

    def module(z: Tensor) -> nn.Module:
        holder = nn.Identity()
        holder.logits = z
        return holder

    return {
        "closure": (lambda z: Data(closed(z)), "function"),
        "generator": (generated, "generator"),
        "iterator": (lambda z: iter([z]), "list_iterator"),
        "class": (on_a_class, "type"),
        "numbers": (lambda z: Data(z.tolist()), "Data"),
        "numpy": (lambda z: Data(z.detach().numpy()), "ndarray"),
        "attribute of a tensor": (attributed, "Tensor with attributes"),
        "module": (module, "Identity"),
        "key": (lambda z: {z: 1}, "Tensor"),
        "bound method": (lambda z: z.clone, "builtin_function_or_method"),
        "scalar": (lambda z: Data(z.mean()), "Data"),
        "nothing": (lambda z: None, "NoneType"),
        "a tensor for each row": (lambda z: list(z), "output"),
    }


@pytest.mark.parametrize("name", sealed_outputs())
@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_what_cannot_be_opened_or_holds_no_rows_is_refused_by_name(name, engine):
    give, words = sealed_outputs()[name]
    model, (x, _) = net(None, give), data()
    model.own = net()
    losses = lambda: (model(x), model.own(x).square().sum(1))[1]  # noqa: E731
    with pytest.raises(RunError, match=words):
        clipped(model, losses, engine)


class Guarded(nn.Module):
    """Divides by what a sealed argument says of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, scale: Any) -> Tensor:
        return self.enter(x) / scale()


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_an_argument_that_cannot_be_opened_is_refused_by_its_type(engine):
    model, (x, y) = Guarded(), data()
    scale = x.abs().max().clone
    losses = lambda: F.cross_entropy(model(x, scale), y, reduction="none")  # noqa: E731
    with pytest.raises(RunError, match="a builtin_function_or_method given to Guarded"):
        clipped(model, losses, engine)


@pytest.mark.parametrize(
    ("statistic", "engine", "rows"),
    slow_but_each(STATISTICS, ["book_keeping", "loop"], [2, 3, 4, 5, 20]),
)
def test_a_wrapper_that_mixes_outside_of_the_model_is_seen_in_the_losses(statistic, engine, rows):
    mix, model, (x, y) = STATISTICS[statistic], net(), data(rows)

    def wrapped(x: Tensor) -> Data:
        return Data([SimpleNamespace(logits=mix(model(x)))])

    losses = lambda: F.cross_entropy(wrapped(x).logits[0].logits, y, reduction="none")  # noqa: E731
    with pytest.raises(RunError, match="depends on another example's loss"):
        clipped(model, losses, engine)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_parts_of_a_model_called_one_by_one_are_compared_too(statistic):
    model, (x, y) = net(), data()
    losses = lambda: F.cross_entropy(  # noqa: E731
        model.leave(STATISTICS[statistic](model.enter(x))), y, reduction="none"
    )
    for engine in ("book_keeping", "loop"):
        with pytest.raises(RunError, match="depends on another example's loss"):
            clipped(model, losses, engine)


@pytest.mark.parametrize("statistic", ["maximum", "second largest", "largest row alone"])
def test_units_are_compared_with_and_without_the_largest(statistic):
    model, (x, y) = net(), data(8)
    units = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    mixed = lambda: F.cross_entropy(  # noqa: E731
        STATISTICS[statistic](model(x)), y, reduction="none"
    )
    with pytest.raises(RunError, match="depends on another example's loss"):
        clipped(model, mixed, "book_keeping", units)
    own = lambda: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    assert len(clipped(model, own, "book_keeping", units)[0]) == 4


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_a_first_batch_of_one_unit_says_nothing_of_the_next(engine):
    model, (x, y) = net(lambda h: h / h.detach().abs().max()), data(4)
    losses = classified(model, x, y, keep, keep)
    with PerExampleClipper(model, NORM, engine=engine) as clipper:
        clipper.accumulate(losses, torch.zeros(4, dtype=torch.long))
        with pytest.raises(RunError, match="for one example changes with the other"):
            clipper.accumulate(losses, torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_another_loss_after_an_honest_one_is_compared(engine):
    model, (x, y) = net(), data()
    own = lambda: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    with PerExampleClipper(model, NORM, engine=engine) as clipper:
        clipper.accumulate(own)
        assert len(clipper.accumulate(lambda: own() * 2 + own().square())) == ROWS
        with pytest.raises(RunError, match="depends on another example's loss"):
            clipper.accumulate(lambda: own() / own().detach().max())


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_a_loss_that_asks_for_a_graph_is_compared(engine):
    model, (x, y) = net(), data()

    def losses(mix: Any) -> Tensor:
        logits = model(x)
        assert logits.grad_fn is not None
        return F.cross_entropy(mix(logits), y, reduction="none")

    with pytest.raises(RunError, match="depends on another example's loss"):
        clipped(model, lambda: losses(STATISTICS["maximum"]), engine)
    assert len(clipped(model, lambda: losses(keep), engine)[0]) == ROWS


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_losses_that_cannot_be_computed_on_other_rows_are_refused(engine):
    model, (x, y) = net(), data()

    def losses() -> Tensor:
        found = F.cross_entropy(model(x), y, reduction="none")
        if [round(loss, 4) for loss in found.tolist()] != first:
            raise ValueError("all rows, in their order")
        return found / found.detach().max()

    first = F.cross_entropy(model(x), y, reduction="none").tolist()
    first = [round(loss, 4) for loss in first]
    with pytest.raises(RunError, match="cannot be computed on some of the batch's rows"):
        clipped(model, losses, engine)


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_a_model_that_wants_its_rows_in_order_is_compared_in_that_order(engine):
    def ordered(mix: Any) -> Any:
        def checked(h: Tensor) -> Tensor:
            if (x_of[0][:, 0].diff() > 0).any():
                raise ValueError("the largest first")
            return mix(h)

        return checked

    def take(x: Tensor) -> Tensor:
        x_of[:] = [x]
        return x

    x_of: list[Tensor] = []
    x, y = data()
    x = x[x[:, 0].argsort(descending=True)]
    model = net(ordered(keep), None, take)
    assert len(clipped(model, classified(model, x, y, keep, keep), engine)[0]) == ROWS
    own = classified(model, x, y, keep, keep)
    with pytest.raises(RunError, match="depends on another example's loss"):
        clipped(model, lambda: own() / own().detach().max(), engine)
    model = net(ordered(STATISTICS["maximum"]), None, take)
    with pytest.raises(RunError, match="for one example changes with the other"):
        clipped(model, classified(model, x, y, keep, keep), engine)


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_what_a_caller_draws_is_given_to_each_row_again(engine):
    model, (x, y) = net(), data()
    noisy = lambda scale: F.cross_entropy(  # noqa: E731
        model(x + torch.randn(x.shape) * scale), y, reduction="none"
    )
    assert len(clipped(model, lambda: noisy(0.1), engine)[0]) == ROWS
    with pytest.raises(RunError, match="depends on another example's loss"):
        clipped(model, lambda: noisy(x.std()), engine)


@pytest.mark.parametrize("engine", slow_but(("loop",), ("book_keeping", "loop")))
def test_a_compiled_model_is_compared_as_any_other(engine):
    model, (x, y) = net(), data()
    fast = torch.compile(model, backend="eager")
    own = lambda: F.cross_entropy(fast(x), y, reduction="none")  # noqa: E731
    with pytest.raises(RunError, match="depends on another example's loss"):
        clipped(fast, lambda: own() / own().detach().max(), engine)
    assert len(clipped(fast, own, engine)[0]) == ROWS


@pytest.mark.parametrize("units", [None, [0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1, 1]])
@pytest.mark.parametrize("engine", ["book_keeping", *slow(("loop",))])
def test_as_many_label_words_as_rows_or_units_are_looked_up(units, engine):
    model = nn.Linear(WIDTH, HIDDEN)
    for count in (2, 3):
        x, _ = data(count if units is None else len(units))
        words, labels = torch.arange(count), torch.rand(len(x), count)

        def losses(x: Tensor = x, words: Tensor = words, labels: Tensor = labels) -> Tensor:
            rows = torch.arange(len(x))
            logits = model(x)[rows, :].index_select(1, words)
            return -(labels * logits.log_softmax(1)).sum(1)

        given = None if units is None else torch.tensor(units)
        assert len(clipped(model, losses, engine, given)[0]) == (count if units is None else 2)


class _TurnedByAll(torch.autograd.Function):
    """Passes values; turns gradients of more than four rows by an angle that all rows say."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        angle = 3 * x[:, 0].sum() * (len(x) > 4)
        one, other = gradient[:, ::2], gradient[:, 1::2]
        turned = (angle.cos() * one - angle.sin() * other, angle.sin() * one + angle.cos() * other)
        return torch.stack(turned, 2).flatten(1)


def _refused(_):
    raise ValueError("four")


class _KnowsHalves(nn.Module):
    """Its gradients meet; its outputs are others, or none, for four rows, part of all."""

    def __init__(self, of_four):
        super().__init__()
        self.of_four = of_four
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        found = self.last(_TurnedByAll.apply(self.first(x).tanh()))
        return self.of_four(found) if len(x) == 4 else found


@pytest.mark.parametrize(
    ("of_four", "words"),
    [
        (lambda found: found * 1.05, "depends on another"),
        (lambda found: found[:1] + 0 * found, "depends on another"),
        (_refused, "fewer do not"),
    ],
    ids=["scaled", "copied", "refused"],
)
@pytest.mark.parametrize(("units", "each"), [(16, 1), (12, 2)])
@pytest.mark.parametrize(
    "engine", ["book_keeping", *slow(("loop",), ("two_pass",), ("instantiate",))]
)
def test_units_whose_losses_differ_in_halves_hide_no_gradients_that_meet(
    units, each, engine, of_four, words
):
    """Sums moved by up to 8.7 times the norm when one of them was left out."""
    model, count = _KnowsHalves(of_four), units * each
    x, weights = torch.randn(count, 6), torch.randn(5)
    owners = torch.arange(units).repeat_interleave(each)
    with pytest.raises(RunError, match=words):
        clipped(model, lambda: (model(x) * weights).sum(1), engine, owners)
