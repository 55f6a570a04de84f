"""Image models against the loop: what they are called with, draw, train and are asked for."""

from itertools import cycle, product

import pytest
import torch
from torch import nn

from dpft.methods.base import METHODS
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.batches import examples
from tests.privacy.clipping.architectures.comparison import (
    NORM,
    clipped,
    difference,
    one_at_a_time,
)
from tests.privacy.clipping.architectures.vision import CASES, DROPS, MODELS
from tests.privacy.clipping.architectures.zoo import Case
from tests.privacy.clipping.oracle import Clipped, clipped_sum, total_norm
from tests.slowness import slow_but

LENGTHS = (5, 9, 3, 4)
"""Of which an image model sees only how many there are."""
ENGINES = ("book_keeping", "two_pass", "instantiate", "auto")
HEADS = ("classifier.weight", "classifier.bias", "classifier.1.weight", "classifier.1.bias")
METHOD_SETTINGS = {
    "full": {},
    "bitfit": {"train_new_modules": False},
    "linear_probe": {},
    "norms": {},
    "lora": {"rank": 2},
}
LORA_TARGETS = {"convnext": ("pwconv1", "pwconv2")}
WITHOUT_DENSE_LAYERS = ("resnet-group-norm", "poolformer")
"""Whose body LoRA, which changes dense layers, refuses by the names of its targets."""
TRAINED = [
    (name, method)
    for name, method in product(MODELS, METHOD_SETTINGS)
    if method != "lora" or name not in WITHOUT_DENSE_LAYERS
]


def assert_exact(model: nn.Module, case: Case, engine: str, allowed: float = 1e-10) -> None:
    batch = examples(LENGTHS)
    expected = clipped(model, case.kind, batch, engine="loop")
    assert expected.norms.max() > NORM, "the test must clip something"
    assert difference(clipped(model, case.kind, batch, engine=engine), expected) <= allowed


@pytest.mark.parametrize(
    ("name", "engine"),
    slow_but([*zip([*CASES][::2], cycle(ENGINES))], product(CASES, ENGINES)),
)
def test_norms_and_sum_equal_the_loop(name, engine):
    assert_exact(CASES[name].build(), CASES[name], engine)


@pytest.mark.parametrize("name", slow_but([*CASES][:1], CASES))
def test_norms_and_sum_equal_images_one_at_a_time(name):
    case, batch = CASES[name], examples(LENGTHS)
    model = case.build()
    expected = one_at_a_time(model, case.kind, batch)
    assert difference(clipped(model, case.kind, batch), expected) <= 1e-10


@pytest.mark.parametrize(
    ("name", "engine"),
    slow_but([("beit", "book_keeping"), ("convnext", "two_pass")], product(DROPS, ENGINES)),
)
def test_stochastic_depth_is_exact_with_the_masks_that_the_model_draws(name, engine):
    model = DROPS[name].build().train()
    assert_exact(model, DROPS[name], engine)


@pytest.mark.parametrize("name", slow_but([*DROPS][:1], DROPS))
def test_stochastic_depth_drops_layers_of_some_images_and_not_of_others(name):
    case, batch = DROPS[name], examples((5,) * 8)
    model = case.build()
    batch.pixels[:], batch.classes[:] = batch.pixels[0].clone(), 0
    whole = clipped(model, case.kind, batch).norms
    assert torch.allclose(whole, whole[:1].expand(8))
    dropped = clipped(model.train(), case.kind, batch).norms
    assert len(dropped.round(decimals=6).unique()) > 1


def prepared(name: str, method: str) -> nn.Module:
    """A model that a method made ready, with what it adds far from where it starts."""
    model = MODELS[name].build()
    settings = dict(METHOD_SETTINGS[method])
    if method == "lora":
        settings["targets"] = LORA_TARGETS.get(name, ("q_proj", "v_proj"))
    new = frozenset(n for n, _ in model.named_parameters() if n in HEADS)
    made = METHODS.named(method)(name=method, **settings).prepare(model, new).eval().double()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


FEW = [(trained, ENGINES[row % len(ENGINES)]) for row, trained in enumerate(TRAINED[::12])]
"""Every twelfth model and method, by each engine in turn."""


@pytest.mark.parametrize(("trained", "engine"), slow_but(FEW, product(TRAINED, ENGINES)))
def test_every_method_is_exact_on_every_image_model(trained, engine):
    name, method = trained
    assert_exact(prepared(name, method), MODELS[name], engine)


@pytest.mark.parametrize(
    ("name", "engine"), slow_but([("vit", "auto"), ("swin", "two_pass")], product(MODELS, ENGINES))
)
def test_views_of_one_image_are_clipped_as_one_by_the_mean_of_their_gradients(name, engine):
    """De et al. 2022: K views of a record, each with 1/K of its loss, in one unit."""
    case, views = MODELS[name], 3
    model = case.build()
    batch = examples((5,) * (3 * views), seed=4)
    batch.classes = batch.classes[::views].repeat_interleave(views)
    units = torch.arange(3).repeat_interleave(views)
    got = clipped_sum(
        model, lambda: case.kind(model, batch) / views, NORM, units=units, engine=engine
    )
    assert difference(got, mean_of_each(model, case, batch, units)) <= 1e-10


def mean_of_each(model: nn.Module, case: Case, batch, units: torch.Tensor) -> Clipped:
    """The definition: the gradient of each unit's mean loss, clipped, summed."""
    named = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    norms = []
    for unit in units.unique():
        loss = case.kind(model, batch.take(units == unit)).mean()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(named, found, strict=True) if g is not None}
        norms.append(total_norm(gradients))
        for name, gradient in gradients.items():
            total[name] += gradient * min(1.0, NORM / float(norms[-1]))
    return Clipped(torch.stack(norms), total)


@pytest.mark.parametrize("name", slow_but(("swin",), MODELS))
def test_float32_is_exact_to_five_digits(name):
    case, batch = MODELS[name], examples(LENGTHS)
    model = case.build(dtype=torch.float32)
    expected = clipped(model, case.kind, batch, engine="loop")
    assert difference(clipped(model, case.kind, batch), expected) <= 1e-5


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vit", {"ViTEmbeddings"}), ("resnet-group-norm", set())],
)
def test_only_what_uses_a_weight_without_the_batch_runs_example_by_example(name, expected):
    """ViT's class token and positions; a ResNet's every weight has a rule."""
    case, batch = MODELS[name], examples(LENGTHS)
    model = case.build()
    with PerExampleClipper(model, NORM, engine="auto") as clipper:
        clipper.accumulate(lambda: case.kind(model, batch))
        running = {type(m).__name__ for m in model.modules() if "forward" in vars(m)}
    assert {n for n in running if "Embeddings" in n or "Layer" in n} - {"LayerNorm"} == expected
