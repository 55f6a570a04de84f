"""Writes to state that a saved model contains: an error names the tensor for each kind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.release_guard import HeldState, check_same, digests_of, state_unchanged

ROWS, VOCABULARY, WIDTH = 6, 11, 4


class Model(nn.Module):
    """A frozen table, a trainable layer, both kinds of buffers, extra state, and a write."""

    def __init__(self, write: Callable[["Model", Tensor], None] = lambda *_: None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, WIDTH).requires_grad_(False)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))
        self.register_buffer("cache", torch.zeros(WIDTH), persistent=False)
        self.notes: dict[str, object] = {"seen": torch.zeros(WIDTH), "rows": 0}
        self.write = write

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        losses: Tensor = (self.dense(hidden) * self.scale.clone()).square().sum((1, 2))
        self.write(self, hidden.detach())
        return losses

    def get_extra_state(self) -> dict[str, object]:
        return self.notes

    def set_extra_state(self, state: dict[str, object]) -> None:
        self.notes = state


IDS = torch.arange(ROWS * 3).reshape(ROWS, 3) % VOCABULARY


def in_place(model: Model, hidden: Tensor) -> None:
    with torch.no_grad():
        model.table.weight.add_(hidden.mean())


def by_set(model: Model, hidden: Tensor) -> None:
    with torch.no_grad():
        model.table.weight.set_(model.table.weight.detach() + hidden.mean())


def to_a_trainable_parameter(model: Model, hidden: Tensor) -> None:
    with torch.no_grad():
        model.dense.bias[0] += hidden.mean()


def to_a_buffer(model: Model, hidden: Tensor) -> None:
    model.scale += hidden.mean()


COUNTED = {
    in_place: "table.weight",
    by_set: "table.weight",
    to_a_trainable_parameter: "dense.bias",
    to_a_buffer: "scale",
}
"""Writes that PyTorch counts, and the tensor that each writes to."""


def to_data(model: Model, hidden: Tensor) -> None:
    model.table.weight.data[0] += hidden.mean((0, 1))


def of_the_last_bit(model: Model, hidden: Tensor) -> None:
    model.table.weight.data[0, 0] = float(model.table.weight.data[0, 0]) * (1 + 2**-23)


def of_an_exchange(model: Model, hidden: Tensor) -> None:
    model.table.weight.data[[0, 1]] = model.table.weight.data[[1, 0]]


def by_another_parameter(model: Model, hidden: Tensor) -> None:
    weight = model.table.weight + hidden.mean()
    model.table.weight = nn.Parameter(weight, requires_grad=False)


def by_another_buffer(model: Model, hidden: Tensor) -> None:
    model.scale = 0.9 * model.scale + hidden.mean()


def by_a_new_buffer(model: Model, hidden: Tensor) -> None:
    model.register_buffer("average", hidden.mean((0, 1)))


def by_removal(model: Model, hidden: Tensor) -> None:
    del model.scale
    model.scale = torch.ones(WIDTH)


def by_a_persistent_cache(model: Model, hidden: Tensor) -> None:
    model.cache += hidden.mean()
    model._non_persistent_buffers_set.discard("cache")


def to_a_cache(model: Model, hidden: Tensor) -> None:
    model.cache += hidden.mean()


def to_extra_state(model: Model, hidden: Tensor) -> None:
    model.notes["seen"] += hidden.mean((0, 1))


def to_a_number(model: Model, hidden: Tensor) -> None:
    model.notes["rows"] = len(hidden)


NOT_COUNTED = {
    to_data: "table.weight",
    of_the_last_bit: "table.weight",
    of_an_exchange: "table.weight",
    by_another_parameter: "table.weight",
    by_another_buffer: "scale",
    by_a_new_buffer: "average",
    by_removal: "scale",
    by_a_persistent_cache: "cache",
    to_a_cache: "cache",
    to_extra_state: "_extra_state",
    to_a_number: "_extra_state",
}
WRITES = COUNTED | NOT_COUNTED


@pytest.mark.parametrize("write", WRITES, ids=[write.__name__ for write in WRITES])
def test_trust_rule_11_a_pass_that_writes_is_refused_by_name(write: Callable[..., None]) -> None:
    model = Model(write)
    with (
        pytest.raises(RunError, match=rf"^{WRITES[write]}.* while the model ran"),
        state_unchanged(model),
    ):
        model(IDS)


@contextmanager
def counters_unchanged(model: nn.Module) -> Iterator[None]:
    held = HeldState(model.state_dict(keep_vars=True))
    held.begin()
    yield
    held.check()


@pytest.mark.parametrize("write", COUNTED, ids=[write.__name__ for write in COUNTED])
def test_version_counters_reveal_writes_in_place(write: Callable[..., None]) -> None:
    model = Model(write)
    with pytest.raises(RunError, match=rf"^{COUNTED[write]} "), counters_unchanged(model):
        model(IDS)


@pytest.mark.parametrize("unchanged", [counters_unchanged, state_unchanged])
def test_what_a_pass_may_do(unchanged: Callable[..., Iterator[None]]) -> None:
    """Write the values that a buffer has, extend or add a cache, and compute gradients."""

    def write(model: Model, hidden: Tensor) -> None:
        model.scale.copy_(model.scale.clone())
        model.cache = torch.zeros(2 * WIDTH)
        model.register_buffer("positions", torch.arange(3), persistent=False)
        model.count = len(hidden)  # type: ignore[assignment]

    model = Model(write)
    for _ in range(3):
        with unchanged(model):
            model(IDS).sum().backward()


def test_a_write_explains_an_error_and_hides_no_other_kind() -> None:
    model = Model()
    for raised, expected in ((InputError, RunError), (KeyError, KeyError)):
        with pytest.raises(expected), state_unchanged(model):
            model.scale += 1
            raise raised("losses differ")


def test_parameters_that_updates_change_have_no_digest_and_stay_in_place() -> None:
    model = Model()
    moved = dict(model.dense.named_parameters(prefix="dense"))
    before = digests_of(model, moved)
    assert set(before) == {"table.weight", "scale", "_extra_state"}
    with torch.no_grad():
        model.dense.weight += 1
    check_same(digests_of(model, moved), before)
    model.dense.weight = nn.Parameter(model.dense.weight.detach())
    with pytest.raises(RunError, match=r"dense\.weight "):
        digests_of(model, moved)


def test_digests_distinguish_types_shapes_and_structures() -> None:
    values: list[object] = [0, 0.0, False, "0", b"0", None, [], {}, [0], {"0": 0}, (0,), [[0], 0]]
    values += [torch.zeros(2), torch.zeros(1, 2), torch.zeros(2, dtype=torch.int32), torch.ones(2)]
    digests = set()
    for value in values:
        model = Model()
        model.notes = {"value": value}
        digests.add(digests_of(model)["_extra_state"])
    assert len(digests) == len(values)


def test_state_that_cannot_be_compared_is_refused() -> None:
    model = Model()
    model.notes["object"] = object()
    with pytest.raises(RunError, match="_extra_state .* object"):
        digests_of(model)
    model = Model()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    with pytest.raises(RunError, match="sparse "):
        digests_of(model)
