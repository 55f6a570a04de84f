"""Clipping styles, per-layer groups and units on every engine, and what is left out."""

import math
from itertools import product

import pytest
import torch
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.models import SYNTHETIC, Records, gpt2, losses_of, records
from tests.privacy.clipping.oracle import (
    ENGINES,
    STYLES,
    TOLERANCE,
    Clipped,
    clipped,
    distance,
    gradients_of,
    unit_gradients,
)
from tests.rejections import rejects
from tests.slowness import slow_but

NORM = 0.5
BATCH = records((7, 12, 3, 9, 5, 8))


def layer_groups(model: nn.Module) -> dict[str, int]:
    """Return the number of each parameter's layer."""
    layers: dict[str, int] = {}
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return {n: layers.setdefault(n.rpartition(".")[0], len(layers)) for n in names}


def sums(engine: str, clipping: str = "flat", batch: Records = BATCH, **options) -> Clipped:
    size = options.get("rows_per_unit", 1)
    synthetic = SYNTHETIC if size == 1 else [records((5, 9, 2, 7, 4, 6)), records((4, 6, 3, 5))]
    model = options.pop("model", None) or gpt2()
    return clipped(
        model, losses_of, [batch], NORM, synthetic=synthetic, engine=engine,
        clipping=clipping, **options,
    )  # fmt: skip


GRID = list(product(ENGINES, STYLES, (1, 2)))
FAST = [("book_keeping", style, 1 + number % 2) for number, style in enumerate(STYLES)]


@pytest.mark.parametrize(("engine", "clipping", "rows_per_unit"), slow_but(FAST, GRID))
def test_every_engine_gives_the_defined_sum_in_every_style(engine, clipping, rows_per_unit):
    model = gpt2()
    expected = unit_gradients(model, losses_of, BATCH, rows_per_unit)
    got = sums(engine, clipping, rows_per_unit=rows_per_unit)
    groups = layer_groups(model) if clipping == "per_layer" else None
    assert distance(got, expected, NORM, clipping=clipping, groups=groups) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("patterns", [("*.attn.*", "*.h.0.*", "*"), ("*.wte.*", "*")])
def test_groups_are_the_patterns_that_fit_first(engine, patterns):
    model = gpt2()
    expected = unit_gradients(model, losses_of, BATCH)
    tests = (
        ("*.attn.*", lambda n: ".attn." in n),
        ("*.h.0.*", lambda n: ".h.0." in n),
        ("*.wte.*", lambda n: ".wte." in n),
        ("*", lambda n: True),
    )
    fits = dict(tests)
    groups = {
        n: next(k for k, p in enumerate(patterns) if fits[p](n)) for n in expected.gradients[0]
    }
    got = sums(engine, "per_layer", groups=patterns)
    assert distance(got, expected, NORM, clipping="per_layer", groups=groups) <= TOLERANCE


@pytest.mark.parametrize(
    ("patterns", "words"),
    [(("*.wte.*", "*.h.*"), "wpe"), (("lm_head.*", "*"), "lm_head")],
)
def test_patterns_that_are_no_partition_are_rejected_by_name(patterns, words):
    with rejects("groups") as faults:
        PerExampleClipper(gpt2(), losses_of, 1.0, clipping="per_layer", groups=patterns)
    assert words in faults[0].value


def test_groups_without_per_layer_clipping_are_rejected():
    with rejects("groups", ("*",)):
        PerExampleClipper(gpt2(), losses_of, 1.0, groups=("*",))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "clipping"), list(product(ENGINES, STYLES)))
def test_trust_rule_2_one_unit_moves_the_sum_by_at_most_the_sensitivity(engine, clipping):
    everyone = sums(engine, clipping)
    for left_out in (1, 4):
        rest = BATCH.take([row for row in range(len(BATCH.ids)) if row != left_out])
        moved = everyone.minus(sums(engine, clipping, rest))
        assert 0 < moved <= NORM * (1 + 1e-6)


@pytest.mark.parametrize("value", slow_but([math.inf], [math.nan, math.inf]))
@pytest.mark.parametrize(
    ("engine", "clipping", "rows_per_unit"), slow_but([("book_keeping", "flat", 1)], GRID)
)
def test_a_unit_that_is_not_finite_contributes_exactly_zero(engine, clipping, rows_per_unit, value):
    bad = BATCH.take(slice(None))
    bad.weights = bad.weights.clone()
    bad.weights[2] = value
    good = BATCH.take(slice(None))
    unit = 2 // rows_per_unit
    good.weights = good.weights.clone()
    good.weights[unit * rows_per_unit : (unit + 1) * rows_per_unit] = 0.0
    got = sums(engine, clipping, bad, rows_per_unit=rows_per_unit)
    rest = sums(engine, clipping, good, rows_per_unit=rows_per_unit)
    assert got.norms[unit] == 0 and got.non_finite == 1
    assert got.norms.isfinite().all()
    assert got.minus(rest) <= 1e-6 * NORM


@pytest.mark.parametrize("engine", ENGINES)
def test_an_infinite_gradient_under_a_finite_loss_contributes_exactly_zero(engine):
    """The root's slope at 0 is infinite, and 0 times infinity is not a number."""
    model = nn.Linear(1, 1, bias=False)

    def losses(model, batch):
        inputs, is_rooted = batch
        outputs = model(inputs)[:, 0]
        vanishing = torch.where(is_rooted > 0, outputs - outputs.detach(), torch.ones(()))
        return torch.where(is_rooted > 0, vanishing.abs().sqrt(), outputs)

    ordinary = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3)
    batch = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 0.0, 0.0])
    got = clipped(model, losses, [batch], NORM, synthetic=[ordinary, ordinary], engine=engine)
    assert got.non_finite == 1 and got.norms[0] == 0
    assert float(got.gradients["weight"]) == pytest.approx(2 * NORM, rel=1e-5)


@pytest.mark.slow
def test_no_unit_that_is_finite_leaves_everything_as_it_was():
    model = gpt2()
    batch = BATCH.take(slice(None))
    batch.weights = torch.full((6,), math.nan)
    got = sums("auto", batch=batch, model=model)
    assert got.non_finite == 6 and got.norms.tolist() == [0.0] * 6
    assert all(float(g.abs().max()) == 0 for g in got.gradients.values())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_an_example_without_labels_contributes_zero_and_is_finite(engine):
    batch = BATCH.take(slice(None))
    batch.labels = batch.labels.clone()
    batch.labels[1] = -100
    got = sums(engine, batch=batch)
    assert got.norms[1] == 0 and got.non_finite == 0
    rest = sums(engine, batch=BATCH.take([0, 2, 3, 4, 5]))
    assert got.minus(rest) <= 1e-5 * NORM


@pytest.mark.slow
@pytest.mark.parametrize("clipping", STYLES)
def test_headroom_is_left_for_the_rounding_of_a_step(clipping):
    """Every gradient here is longer than C, so that each contributes (1 - headroom) C."""
    model = gpt2()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    batch = BATCH.take([1])
    whole, less = (
        sums("book_keeping", clipping, batch, model=model, headroom=headroom)
        for headroom in (0.0, 0.25)
    )
    zero = Clipped(whole.norms, {n: torch.zeros_like(g) for n, g in whole.gradients.items()})
    assert whole.minus(zero) <= NORM
    assert less.minus(zero) == pytest.approx(0.75 * whole.minus(zero), rel=1e-3)


def test_the_sensitivity_is_the_clipping_norm_in_every_style():
    for clipping in STYLES:
        clipper = PerExampleClipper(gpt2(), losses_of, 0.3, clipping=clipping)
        assert clipper.sensitivity == 0.3


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
@pytest.mark.parametrize("count", slow_but([64], [8, 64]))
def test_the_sum_of_a_step_of_equal_records_is_their_number_times_one(engine, count):
    """Compensated sums: the error of a step's sum does not grow with the number of additions."""
    layer = nn.Linear(16, 8, bias=False)
    losses = lambda model, batch: model(batch[0]).sum((1, 2))  # noqa: E731
    torch.manual_seed(0)
    batch = (torch.randn(1, 3, 16).expand(4, -1, -1),)
    with PerExampleClipper(layer, losses, 0.1, engine=engine) as clipper:
        clipper.self_check((torch.randn(4, 3, 16),), (torch.randn(3, 2, 16),))
        for _ in range(count):
            clipper.accumulate(batch)
    many = gradients_of(layer)["weight"].double()
    one = clipped(layer, losses, [batch], 0.1, engine=engine).gradients["weight"].double()
    assert float((many - count * one).norm()) <= 2e-7 * float(many.norm())
