"""Every engine gives the same sum: engines x styles x units x non-finite examples."""

import gc
import logging
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES, automatic_choice
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engine import STYLES, clipping_style
from dpft.privacy.clipping.trainable import parameter_groups
from tests.privacy.clipping.oracle import Clipped, clipped_sum, gpt2, records
from tests.slowness import slow_but, slow_but_each

pytestmark = pytest.mark.usefixtures("self_check_once")

NORM = 0.5
FAST = [name for name in ENGINES if name != "loop"]
UNITS = torch.tensor([9, 4, 9, 9])


def expected_sum(model, batch, style_name, units=None, keep=(0, 1, 2, 3)) -> Clipped:
    """The definition, with explicit gradients, each alone in its batch."""
    per_layer = style_name == "per_layer"
    numbers = parameter_groups(model, per_layer=per_layer)
    count = max(numbers.values()) + 1
    style = clipping_style(style_name, max_grad_norm=NORM, groups=count)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    labels = torch.arange(4) if units is None else units
    totals, norms = {n: torch.zeros_like(p) for n, p in named.items()}, []
    for unit in torch.unique(labels):
        rows = [row for row in range(4) if labels[row] == unit]
        if not set(rows) <= set(keep):
            norms.append(torch.zeros((), dtype=next(iter(named.values())).dtype))
            continue
        loss = batch.take(rows).losses(model)().sum()
        gradients = dict(zip(named, torch.autograd.grad(loss, named.values()), strict=True))
        squares = loss.detach().new_zeros(count, 1)
        for name, gradient in gradients.items():
            squares[numbers[name]] += gradient.square().sum()
        factors = style.factors(squares.sqrt())[:, 0]
        norms.append(squares.sum().sqrt())
        for name, gradient in gradients.items():
            totals[name] += factors[numbers[name]] * gradient
    return Clipped(torch.stack(norms), totals)


def spoilt(losses, row):
    ones = torch.ones(4)
    ones[row] = float("nan")
    return lambda: losses() * ones


@pytest.mark.parametrize(
    ("engine", "clipping", "by_unit"), slow_but_each(ENGINES, STYLES, (False, True))
)
def test_every_engine_gives_the_defined_sum_in_every_style(engine, clipping, by_unit):
    units = UNITS if by_unit else None
    model, batch = gpt2(dtype=torch.float64), records()
    expected = expected_sum(model, batch, clipping, units)
    got = clipped_sum(model, batch.losses(model), engine=engine, clipping=clipping, units=units)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-10)
    assert got.distance(expected) <= 1e-10


@pytest.mark.parametrize(
    ("engine", "clipping", "by_unit"), slow_but_each(FAST, STYLES, (False, True))
)
def test_a_non_finite_example_contributes_exactly_zero(engine, clipping, by_unit):
    units = UNITS if by_unit else None
    model, batch = gpt2(), records()
    keep = (0, 2, 3) if units is None else (1,)
    bad_row = 1 if units is None else 2
    expected = expected_sum(model, batch, clipping, units, keep)
    losses = spoilt(batch.losses(model), bad_row)
    got = clipped_sum(model, losses, engine=engine, clipping=clipping, units=units)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-5)
    assert got.distance(expected) <= 1e-5


PAIRS = [(engine, style) for engine in ENGINES for style in STYLES]
FEW = [("book_keeping", "per_layer"), ("two_pass", "flat")]


@pytest.mark.parametrize(("engine", "clipping"), slow_but(FEW, PAIRS))
def test_adding_one_example_moves_the_sum_by_at_most_the_sensitivity(engine, clipping):
    model, batch = gpt2(), records()
    everyone = clipped_sum(model, batch.losses(model), engine=engine, clipping=clipping)
    everyone = Clipped(everyone.norms, {n: g.clone() for n, g in everyone.gradients.items()})
    for left_out in range(4):
        rest = batch.take([row for row in range(4) if row != left_out])
        without = clipped_sum(model, rest.losses(model), engine=engine, clipping=clipping)
        assert everyone.minus(without) <= NORM * (1 + 1e-5)


@pytest.mark.parametrize(("engine", "memory_mb"), slow_but_each(ENGINES, (0, 256)))
def test_memory_and_loss_scale_change_no_digit_that_matters(engine, memory_mb):
    model, batch = gpt2(), records()
    expected = expected_sum(model, batch, "automatic")
    got = clipped_sum(
        model,
        batch.losses(model),
        engine=engine,
        clipping="automatic",
        memory_mb=memory_mb,
        loss_scale=4096.0,
    )
    assert torch.allclose(got.norms, expected.norms, rtol=1e-5)
    assert got.distance(expected) <= 1e-5


@pytest.mark.parametrize(("engine", "by_unit"), slow_but_each(ENGINES, (False, True)))
def test_a_micro_batch_leaves_no_tensor_to_the_collector_of_cycles(engine, by_unit):
    model, batch = gpt2(), records()
    with PerExampleClipper(model, NORM, engine=engine) as clipper:
        clipper.accumulate(batch.losses(model), UNITS if by_unit else None)
        gc.collect()
        before = {id(each) for each in gc.get_objects() if isinstance(each, Tensor)}
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(2):
                clipper.accumulate(batch.losses(model), UNITS if by_unit else None)
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, Tensor)]
            assert not [each.shape for each in left if id(each) not in before]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


@pytest.mark.parametrize("engine", FAST)
def test_a_layer_called_twice_adds_up_before_the_norm(engine):
    torch.manual_seed(0)
    layer = nn.Linear(5, 5).double()
    inputs = torch.randn(3, 4, 5, dtype=torch.float64)

    def losses() -> Tensor:
        return layer(layer(inputs).tanh()).square().sum((1, 2))

    expected = clipped_sum(layer, losses, engine="loop")
    expected = Clipped(expected.norms, {n: g.clone() for n, g in expected.gradients.items()})
    with PerExampleClipper(layer, NORM, engine=engine) as clipper:
        for _ in range(2):
            layer.zero_grad()
            assert torch.allclose(clipper.accumulate(losses), expected.norms, rtol=1e-10)
            got = Clipped(expected.norms, {n: p.grad for n, p in layer.named_parameters()})
            assert got.distance(expected) <= 1e-10


@pytest.mark.parametrize(
    ("engine", "use_reentrant"),
    slow_but([("two_pass", False), ("book_keeping", True)], product(FAST, (False, True))),
)
def test_gradient_checkpointing_changes_nothing_dropout_included(engine, use_reentrant):
    model, batch = gpt2(dropout=0.2, dtype=torch.float64).train(), records()
    torch.manual_seed(3)
    plain = clipped_sum(model, batch.losses(model), engine="book_keeping")
    plain = Clipped(plain.norms, {n: g.clone() for n, g in plain.gradients.items()})
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    torch.manual_seed(3)
    got = clipped_sum(model, batch.losses(model), engine=engine)
    assert torch.allclose(got.norms, plain.norms, rtol=1e-10)
    assert got.distance(plain) <= 1e-10


@pytest.mark.parametrize("engine", slow_but([*FAST][:1], FAST))
def test_an_exception_in_the_backward_pass_leaves_model_and_gradients_as_they_were(engine):
    model, batch = gpt2(), records()
    once = clipped_sum(model, batch.losses(model), engine=engine)
    held = {n: g.clone() for n, g in once.gradients.items()}

    def losses() -> Tensor:
        result = batch.losses(model)()
        result.register_hook(lambda gradient: 1 / 0)
        return result

    with (
        pytest.raises(ZeroDivisionError),
        PerExampleClipper(model, NORM, engine=engine) as clipper,
    ):
        clipper.accumulate(losses)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, held[name])
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_choice_of_auto_depends_on_shapes_and_switches_and_is_logged_once(caplog):
    model = gpt2()
    assert automatic_choice(model, Tuning())[0] == "book_keeping"
    model.activation_checkpointing_enable()
    assert automatic_choice(model, Tuning())[0] == "two_pass"
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "ln_" in name
    assert automatic_choice(model, Tuning())[0] == "instantiate"
    assert automatic_choice(model, Tuning(memory_mb=0))[0] == "two_pass"
    caplog.set_level(logging.INFO, logger="dpft")
    batch = records()
    with PerExampleClipper(model, NORM) as clipper:
        clipper.accumulate(batch.losses(model))
        clipper.accumulate(batch.losses(model))
    lines = [r.message for r in caplog.records if "engine" in r.message]
    assert lines == ["`engine='auto'` takes instantiate: the trainable parameters are few"]


@pytest.mark.parametrize(
    "options", [{"memory_mb": -1}, {"loss_scale": 0.0}, {"loss_scale": float("inf")}]
)
def test_tuning_out_of_range_is_refused(options):
    with pytest.raises(InputError, match="must "):
        PerExampleClipper(gpt2(), NORM, **options)
