"""What a caller may pass and when; every wrong use is an error that names what is wrong."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.clipper import PerExampleClipper
from tests.privacy.clipping.models import SYNTHETIC, gpt2, losses_of, records
from tests.privacy.clipping.oracle import (
    ENGINES,
    TOLERANCE,
    Clipped,
    clipped,
    distance,
    gradients_of,
    row_count,
    rows_of,
    unit_gradients,
)
from tests.rejections import rejects
from tests.slowness import slow_but, slow_but_each

NORM = 0.5
BATCH = records()


def sums(model: nn.Module, logits: Tensor) -> Tensor:
    return model(logits).square().sum(1)


def layer_and_rows(count: int = 4) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(3, 3), torch.randn(count, 3)


@dataclass
class Fields:
    inputs: Tensor
    targets: Tensor
    name: str = "pair"


register_dataclass(Fields, field_names=["inputs", "targets"], drop_field_names=["name"])
TREES = {
    "tuple": (lambda x, y: (x, y), lambda b: b),
    "dictionary": (lambda x, y: {"x": x, "y": y}, lambda b: (b["x"], b["y"])),
    "dataclass": (Fields, lambda b: (b.inputs, b.targets)),
    "nested": (lambda x, y: {"a": [(x,), {"y": y}]}, lambda b: (b["a"][0][0], b["a"][1]["y"])),
}


@pytest.mark.parametrize(("name", "engine"), slow_but_each(TREES, ENGINES))
def test_a_batch_is_any_tree_of_tensors(name, engine):
    pack, unpack = TREES[name]
    layer, inputs = layer_and_rows(5)

    def losses(model, batch):
        own, targets = unpack(batch)
        return (model(own) - targets).square().sum(1)

    batch = pack(inputs, torch.rand(5, 3))
    expected = unit_gradients(layer, losses, batch)
    got = clipped(layer, losses, [batch], NORM, engine=engine)
    assert distance(got, expected, NORM) <= 1e-5
    assert row_count(rows_of(batch, [1, 2])) == 2


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_leaf_with_another_leading_dimension_is_named(engine):
    layer, inputs = layer_and_rows()
    batch = {"inputs": inputs, "class_weights": torch.ones(7)}
    losses = lambda model, batch: sums(model, batch["inputs"])  # noqa: E731
    with PerExampleClipper(layer, losses, NORM, engine=engine) as clipper:
        good = {"inputs": inputs, "class_weights": torch.ones(4)}
        clipper.self_check(good, rows_of(good, slice(3)))
        with rejects("batch['class_weights']"):
            clipper.accumulate(batch)
        with rejects("batch['class_weights']"):
            clipper.accumulate({"inputs": inputs, "class_weights": torch.tensor(1.0)})
        with rejects("batch"):
            clipper.accumulate({})


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_batch_of_no_rows_adds_nothing(engine):
    layer, inputs = layer_and_rows()
    with PerExampleClipper(layer, sums, NORM, engine=engine) as clipper:
        clipper.self_check(inputs, inputs[:3])
        assert clipper.accumulate(inputs[:0]).shape == (0,)
    assert all(float(g.abs().sum()) == 0 for g in gradients_of(layer).values())


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_nothing_is_accumulated_before_a_self_check(engine):
    layer, inputs = layer_and_rows()
    with (
        PerExampleClipper(layer, sums, NORM, engine=engine) as clipper,
        rejects(),
    ):
        clipper.accumulate(inputs)
    assert layer.weight.grad is None


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
@pytest.mark.parametrize("size", [0, 3, -1])
def test_rows_that_are_not_whole_units_are_rejected(size, engine):
    layer, inputs = layer_and_rows()
    with PerExampleClipper(layer, sums, NORM, engine=engine) as clipper:
        clipper.self_check(inputs, inputs[:3])
        with rejects("rows_per_unit", size):
            clipper.accumulate(inputs, rows_per_unit=size)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_losses_of_a_wrong_shape_are_rejected_in_any_micro_batch(engine):
    layer, inputs = layer_and_rows()
    change = [lambda losses: losses]
    losses = lambda model, batch: change[-1](sums(model, batch))  # noqa: E731
    with PerExampleClipper(layer, losses, NORM, engine=engine) as clipper:
        clipper.self_check(inputs, inputs[:3])
        clipper.accumulate(inputs)
        before = gradients_of(layer)
        for wrong in (torch.sum, lambda t: t[:, None], lambda t: t[:1], lambda t: t.sum().item()):
            change.append(wrong)
            with pytest.raises((InputError, RunError)):
                clipper.accumulate(inputs)
    after = gradients_of(layer)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_the_sum_is_added_to_what_grad_held(engine):
    model = gpt2()
    once = clipped(model, losses_of, [BATCH], NORM, synthetic=SYNTHETIC, engine=engine)
    twice = clipped(model, losses_of, [BATCH, BATCH], NORM, synthetic=SYNTHETIC, engine=engine)
    for name, gradient in once.gradients.items():
        assert torch.allclose(twice.gradients[name], 2 * gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_self_check_leaves_gradients_modes_and_random_numbers_as_they_were(engine):
    model = gpt2(dropout=0.2)
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with PerExampleClipper(model, losses_of, NORM, engine=engine) as clipper:
        choice = clipper.self_check(*SYNTHETIC)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.lm_head.weight.grad, torch.ones_like(model.lm_head.weight))
    assert model.transformer.wpe.weight.grad is None
    assert [module.training for module in model.modules()] == modes
    assert choice.engine == ("rows" if engine == "rows" else "book_keeping")
    assert all(isinstance(kind, str) for kind in choice.kinds.values())


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_leaving_restores_the_model_even_after_an_error(engine):
    model = gpt2()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    fails: list[bool] = []

    def losses(model, batch):
        result = losses_of(model, batch)
        if fails and result.requires_grad:
            result.register_hook(lambda gradient: 1 / 0)
        return result

    clipper = PerExampleClipper(model, losses, NORM, engine=engine)
    with pytest.raises(ZeroDivisionError), clipper:
        clipper.self_check(*SYNTHETIC)
        clipper.accumulate(BATCH)
        held = gradients_of(model)
        fails.append(True)
        clipper.accumulate(BATCH)
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}
    after = gradients_of(model)
    assert all(torch.equal(after[name], held[name]) for name in held)


def test_a_clipper_is_entered_once_at_a_time():
    layer, inputs = layer_and_rows()
    clipper = PerExampleClipper(layer, sums, NORM)
    with pytest.raises(InputError):
        clipper.self_check(inputs)
    with clipper, pytest.raises(InputError):
        clipper.__enter__()


def freeze(model: nn.Module) -> None:
    model[0].bias.requires_grad_(False)


def unfreeze(model: nn.Module) -> None:
    model[1].bias.requires_grad_(True)


def replace(model: nn.Module) -> None:
    model[0].bias = nn.Parameter(torch.zeros(4), requires_grad=False)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
@pytest.mark.parametrize("change", [freeze, unfreeze, replace])
def test_another_set_of_trainable_parameters_is_rejected_by_name(change, engine):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    inputs = torch.randn(4, 3)
    with PerExampleClipper(model, sums, NORM, engine=engine) as clipper:
        clipper.self_check(inputs, inputs[:3])
        change(model)
        with pytest.raises(RunError, match=r"\d\.bias"):
            clipper.accumulate(inputs)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_backward_pass_of_the_callers_in_the_losses_is_rejected(engine):
    layer, inputs = layer_and_rows()
    writes: list[bool] = []

    def losses(model, batch):
        result = sums(model, batch)
        if writes:
            sums(model, batch).sum().backward()
        return result

    with PerExampleClipper(layer, losses, NORM, engine=engine) as clipper:
        clipper.self_check(inputs, inputs[:3])
        clipper.accumulate(inputs)
        before = gradients_of(layer)
        writes.append(True)
        with pytest.raises(RunError):
            clipper.accumulate(inputs)
    after = gradients_of(layer)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_weight_used_outside_its_layer_from_some_micro_batch_on_stays_exact():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    inputs, uses = torch.randn(4, 3), []

    def losses(model, batch):
        hidden = nn.functional.linear(batch, model[0].weight) if uses else model[0](batch)
        return model[1](hidden).square().sum(1)

    with PerExampleClipper(model, losses, NORM, engine="book_keeping") as clipper:
        clipper.self_check(inputs, inputs[:3])
        clipper.accumulate(inputs)
        uses.append(True)
        expected = unit_gradients(model, losses, inputs)
        norms = clipper.accumulate(inputs)
    assert distance(Clipped(norms, gradients_of(model)), expected, NORM) <= TOLERANCE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("max_grad_norm", value) for value in (0, -1.0, float("inf"), 1e-46, 1e30)],
        ("engine", "two_pass"),
        ("clipping", "global"),
        ("loss_scale", 0.0),
        ("loss_scale", float("inf")),
    ],
)
def test_options_out_of_range_are_rejected_by_name(key, value):
    with rejects(key, value):
        PerExampleClipper(nn.Linear(1, 1), sums, **{"max_grad_norm": NORM} | {key: value})


def test_a_model_without_a_trainable_parameter_is_rejected():
    with rejects("model"):
        PerExampleClipper(nn.Linear(2, 2).requires_grad_(False), sums, NORM)


def test_trainable_parameters_in_half_precision_are_rejected_by_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16))
    with rejects("1.weight", torch.bfloat16):
        PerExampleClipper(model, sums, NORM)
    model[1].requires_grad_(False)
    PerExampleClipper(model, sums, NORM)
