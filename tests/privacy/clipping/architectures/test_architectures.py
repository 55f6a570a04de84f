"""Every architecture, every parameter trainable, against examples that are executed separately."""

from itertools import product

import pytest
import torch
import transformers as hf
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.batches import Examples, examples
from tests.privacy.clipping.architectures.vision import CASES, DROPS, MODELS
from tests.privacy.clipping.architectures.zoo import EVERY, GROUPED, VISION, Case
from tests.privacy.clipping.oracle import (
    ENGINES,
    TOLERANCE,
    Clipped,
    assert_exact,
    clipped,
    distance,
    unit_gradients,
)
from tests.slowness import slow_but

BATCH = examples((5, 9, 3, 7))
SYNTHETIC = (examples((5, 9, 2, 7), seed=11), examples((4, 6, 3), seed=12))
NORM = 0.5
ALL = EVERY | CASES
NEEDS_ROWS: set[str] = set()
"""Architectures for which only engine ``rows`` is exact."""


def rows_of(batch: Examples) -> list[Examples]:
    return [batch.alone(row) for row in range(len(batch))]


def exact(case: Case, model: nn.Module, batch: Examples = BATCH, **options) -> Clipped:
    """Assert that sums are exact, and return them."""
    alone = [rows_of(each) for each in SYNTHETIC] if case.alone else None
    expected = unit_gradients(model, case.kind, batch, alone=rows_of(batch) if case.alone else None)
    options = {"synthetic": SYNTHETIC, "alone": alone} | options
    norm = expected.median_norm()
    got = clipped(model, case.kind, [batch], norm, **options)
    error = distance(got, expected, norm)
    assert error <= TOLERANCE, f"relative error {error:.1e}"
    return got


FAST = ("gpt2-tied", "convnext")


@pytest.mark.parametrize("name", slow_but(FAST, ALL))
def test_norms_and_sum_are_those_of_examples_without_padding(name):
    got = exact(ALL[name], ALL[name].build())
    assert (got.choice.engine == "rows") == (name in NEEDS_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["rows", "book_keeping"])
@pytest.mark.parametrize("name", EVERY)
def test_every_engine_is_exact_with_every_attention(name, engine):
    for attention in EVERY[name].attention:
        exact(EVERY[name], EVERY[name].build(attention=attention), engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_as_many_examples_as_positions_is_no_special_case(name):
    exact(EVERY[name], EVERY[name].build(), examples((5, 4, 5, 3, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in EVERY if EVERY[n].alone])
def test_trust_rule_3_neither_padding_nor_micro_batches_change_the_sum(name):
    case, model = EVERY[name], EVERY[name].build()
    expected = unit_gradients(model, case.kind, BATCH, alone=rows_of(BATCH))
    parts = [BATCH.take([0]).padded(3), BATCH.take([1, 2, 3])]
    got = clipped(model, case.kind, parts, NORM, synthetic=SYNTHETIC)
    assert distance(got, expected, NORM) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_unit_is_clipped_as_the_sum_of_its_rows(name):
    case, batch = EVERY[name], examples((5, 9, 3, 7, 4, 6))
    assert_exact(case.build(), case.kind, batch, rows_per_unit=2)


CHECKPOINTED = ("llama-tied", "opt", "bert-masked-lm", "t5", "beit", "vit")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "use_reentrant"), list(product(CHECKPOINTED, (False, True))))
def test_gradient_checkpointing_is_exact(name, use_reentrant):
    case = EVERY[name]
    model = case.build().train()
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    exact(case, model)


DRAWING = ("llama-tied", "bert-masked-lm", "t5", "beit")


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWING)
def test_dropout_moves_the_sum_by_at_most_the_clipping_norm(name):
    case = EVERY[name]
    model = case.build(dropout=0.2)
    for row in range(len(BATCH)):
        batch = BATCH.take(slice(None))
        batch.labeled = torch.arange(len(BATCH)) == row
        got = clipped(model, case.kind, [batch], NORM, synthetic=SYNTHETIC, seed=3)
        zero = Clipped(got.norms, {n: torch.zeros_like(g) for n, g in got.gradients.items()})
        assert 0 < got.minus(zero) <= NORM


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-tied", "bert-masked-lm", "t5", "beit", "gemma3"])
def test_bfloat16_norms_are_within_two_percent(name):
    case, model = EVERY[name], EVERY[name].build()
    full, half = (
        clipped(model, case.kind, [BATCH], NORM, synthetic=SYNTHETIC, autocast=autocast)
        for autocast in (None, torch.bfloat16)
    )
    assert torch.allclose(half.norms, full.norms, rtol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPS)
def test_stochastic_depth_is_turned_off_for_comparison_and_on_for_records(name):
    case = DROPS[name]
    batch = examples((5,) * 8)
    batch.pixels[:], batch.classes[:] = batch.pixels[0].clone(), 0
    model = case.build().train()
    norms = clipped(model, case.kind, [batch], NORM, synthetic=SYNTHETIC, seed=3).norms
    assert len(norms.round(decimals=6).unique()) > 1
    exact(case, model.eval())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), list(product(MODELS, ENGINES[:2])))
def test_views_of_an_image_are_clipped_as_one(name, engine):
    """De et al. 2022: each of K views of a record has 1/K of its loss, in one unit."""
    case, views = MODELS[name], 3
    batch = examples((5,) * (3 * views), seed=4)
    batch.classes = batch.classes[::views].repeat_interleave(views)
    losses = lambda model, batch: case.kind(model, batch) / views  # noqa: E731
    assert_exact(case.build(), losses, batch, rows_per_unit=views, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_that_combine_examples_are_rejected_by_name(engine):
    resnet = hf.ResNetConfig(**VISION["resnet-group-norm"].options)
    with pytest.raises(InputError, match=r"normalization \(BatchNorm2d\)"):
        model = hf.ResNetForImageClassification(resnet)
        PerExampleClipper(model, VISION["vit"].kind, 0.5, engine=engine)
    experts = hf.MixtralConfig(**GROUPED, num_local_experts=2)
    with pytest.raises(InputError, match="experts"):
        model = hf.MixtralForCausalLM(experts)
        PerExampleClipper(model, EVERY["mistral"].kind, 0.5, engine=engine)
