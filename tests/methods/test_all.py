"""Every method on every kind of model: its gradients are exact and outlive a save.

That they are bounded is tests/privacy/test_methods_twin.py's, with dpft's own losses.
"""

import pytest
import torch

from dpft.privacy.clipping import PerExampleClipper
from tests.methods.shapes import (
    NAMES,
    SYNTHETIC,
    assert_exact,
    fresh,
    logits,
    loss_of,
    prepared,
    read_back,
    recipe,
    train,
)
from tests.rejections import rejects
from tests.slowness import slow_but

RECIPES: dict[str, dict] = {
    "full": {},
    "retrain": {},
    "bitfit": {},
    "norms": {},
    "top2": {},
    "linear_probe": {},
    "adapter": {"bottleneck": 4},
    "compacter": {"bottleneck": 4, "n": 2},
}
"""Settings that fit the small models, for each method."""
REFUSED = {
    ("bitfit", "t5"),  # T5 has no biases
    ("linear_probe", "gpt2"),  # the heads of these three are tied to their embeddings
    ("linear_probe", "bert-masked-lm"),
    ("linear_probe", "t5"),
}
GRID = [(method, shape) for method in RECIPES for shape in NAMES]
FITTING = [pair for pair in GRID if pair not in REFUSED]
FAST = [("bitfit", "bert-classification"), ("compacter", "gpt2")]
"""A part of each layer, and layers of the method's own; make test-slow tries all pairs."""
over_the_grid = pytest.mark.parametrize(("name", "shape"), FITTING)


@pytest.mark.parametrize(("name", "shape"), sorted(REFUSED))
def test_a_method_that_has_nothing_to_train_is_refused(name: str, shape: str) -> None:
    with rejects("method.untie" if name == "linear_probe" else "method"):
        recipe(name, **RECIPES[name]).prepare(fresh(shape))


@pytest.mark.parametrize(("name", "shape"), slow_but(FAST, FITTING))
def test_norms_and_sums_are_those_of_examples_executed_separately(name: str, shape: str) -> None:
    expected = assert_exact(prepared(recipe(name, **RECIPES[name]), shape), shape)
    assert float(expected.norms.min()) > 0


@pytest.mark.slow
@over_the_grid
def test_book_keeping_passes_its_self_check_in_bfloat16(name: str, shape: str) -> None:
    model, kind = prepared(recipe(name, **RECIPES[name]), shape), loss_of(shape)
    options = {"engine": "book_keeping", "autocast": torch.bfloat16}
    with PerExampleClipper(model, kind, 0.5, **options) as clipper:
        assert clipper.self_check(*SYNTHETIC).engine == "book_keeping"


@pytest.mark.slow
@over_the_grid
def test_a_saved_model_computes_the_same_bits(name: str, shape: str, tmp_path) -> None:
    method, kind = recipe(name, **RECIPES[name]), loss_of(shape)
    model = prepared(method, shape)
    before = logits(model, kind)
    train(model, kind)
    after = logits(model, kind)
    assert not torch.equal(before, after)
    assert torch.equal(logits(read_back(method, model, shape, tmp_path), kind), after)
