"""A forward pass must not write to what a state dict releases: such a write has no noise."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.oracle import ENGINES
from tests.slowness import slow_but, slow_but_every

ROWS, WORDS, WIDTH = 6, 11, 4
Write = Callable[["Model", Tensor], None]


class Model(nn.Module):
    """A frozen table, a trainable layer, buffers, and a write in the forward pass.

    Attributes:
        writes: Whether the forward pass writes.
    """

    def __init__(self, write: Write | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))
        self.register_buffer("cache", torch.zeros(WIDTH), persistent=False)
        self.notes: dict[str, object] = {"seen": torch.zeros(WIDTH)}
        self.write, self.writes = write, False

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        outputs: Tensor = (self.dense(hidden) * self.scale.clone()).square().sum((1, 2))
        if self.writes and self.write is not None:
            self.write(self, hidden.detach())
        return outputs


class Noting(Model):
    """A model with extra state."""

    def get_extra_state(self) -> dict[str, object]:
        return self.notes

    def set_extra_state(self, state: dict[str, object]) -> None:
        self.notes = state


def losses_of(model: nn.Module, ids: Tensor) -> Tensor:
    return model(ids)


def batch(seed: int = 1, rows: int = ROWS) -> Tensor:
    return torch.randint(0, WORDS, (rows, 3), generator=torch.Generator().manual_seed(seed))


def run(model: Model, first: int = 0, batches: int = 3, engine: str = "auto") -> None:
    """Accumulate micro-batches; the forward pass writes from micro-batch ``first`` on.

    Micro-batch 0 is the self-check. The optimizer moves the trainable parameters after each.
    """
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    with PerExampleClipper(model, losses_of, 1.0, engine=engine) as clipper:
        for number in range(batches + 1):
            model.writes = number >= first
            torch.manual_seed(number)
            if number == 0:
                clipper.self_check(batch(8, 4), batch(9, 3))
                continue
            clipper.accumulate(batch(number))
            optimizer.step()
            optimizer.zero_grad()


def of_data(model: Model, h: Tensor) -> None:
    model.table.weight.data[0] += h.mean((0, 1))


def in_place(model: Model, h: Tensor) -> None:
    with torch.no_grad():
        model.table.weight.add_(h.mean())


def buffer(model: Model, h: Tensor) -> None:
    model.scale += h.mean()


def another_buffer(model: Model, h: Tensor) -> None:
    model.scale = model.scale + h.mean()


def new_parameter(model: Model, h: Tensor) -> None:
    model.register_parameter("seen", nn.Parameter(h.mean((0, 1)), requires_grad=False))


def trainable(model: Model, h: Tensor) -> None:
    with torch.no_grad():
        model.dense.bias[0] += h.mean()


WRITES: dict[Write, str] = {
    in_place: "table.weight",
    of_data: "table.weight",
    buffer: "scale",
    another_buffer: "scale",
    new_parameter: "seen",
    trainable: "dense.bias",
}
COUNTED = (in_place, buffer, trainable)
"""Writes that PyTorch counts; the clipper notices them in every micro-batch."""
GRID = [
    (write, first, engine)
    for write, first, engine in product(WRITES, (0, 1, 3), ENGINES)
    if first < 2 or write in COUNTED
]


@pytest.mark.parametrize(("write", "first", "engine"), slow_but_every(4, GRID))
def test_trust_rule_11_a_forward_pass_that_writes_is_rejected_by_name(write, first, engine):
    """In the self-check, from the first micro-batch on, and in the last one only.

    A write that is not counted and begins after the compared micro-batches is found by the
    digests at the end of a run (tests/privacy/test_release_guard.py).
    """
    named = rf"\b{WRITES[write]}"
    if first == 0:  # What is written changes the losses of the next row.
        named += "|depends on other examples"
    with pytest.raises((InputError, RunError), match=named):
        run(Model(write), first, engine=engine)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_write_in_training_mode_only_is_rejected(engine):
    def only_in_training(model: Model, h: Tensor) -> None:
        if model.training:
            buffer(model, h)

    with pytest.raises((InputError, RunError), match="scale"):
        run(Model(only_in_training), 1, engine=engine)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
@pytest.mark.parametrize("first", [0, 1])
def test_extra_state_must_stay_as_it_is(first, engine):
    def count(model: Model, h: Tensor) -> None:
        model.notes["rows"] = int(model.notes.get("rows", 0)) + len(h)

    def add_in_place(model: Model, h: Tensor) -> None:
        model.notes["seen"] += h.mean((0, 1))

    for write in (count, add_in_place):
        with pytest.raises((InputError, RunError), match="_extra_state"):
            run(Noting(write), first, engine=engine)
    run(Noting(), engine=engine)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_what_is_not_released_may_be_filled(engine):
    """A rotary cache, a lazily made buffer, a plain attribute."""

    def fill(model: Model, h: Tensor) -> None:
        model.cache = h.new_zeros(3, WIDTH)
        model.register_buffer("lazy", torch.ones(3), persistent=False)
        model.last = len(h)

    run(Model(fill), engine=engine)


def test_the_caller_may_move_frozen_weights_between_two_micro_batches():
    """A method may move them by what it makes of the noisy sum."""
    model = Model()
    with PerExampleClipper(model, losses_of, 1.0) as clipper:
        clipper.self_check(batch(8, 4), batch(9, 3))
        for _ in range(3):
            clipper.accumulate(batch())
            with torch.no_grad():
                model.table.weight -= 0.1
        model.write, model.writes = in_place, True
        with pytest.raises(RunError, match=r"table\.weight"):
            clipper.accumulate(batch())
