"""Magnitudes whose squares float32 does not hold: a lone example moves the sum by at most C.

Expected norms are those of float64 gradients, taken by autograd from the same numbers.
"""

import itertools

import pytest
import torch
from torch import Tensor, nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES
from dpft.privacy.clipping.engine import STYLES
from tests.slowness import slow_but, slow_but_each

pytestmark = pytest.mark.usefixtures("self_check_once")

MAGNITUDES = (1e-25, 1e-19, 1e-8, 1.0, 1e13, 1e25)
NORMS = (1e-10, 1e-6, 1.0, 1e6)
PAIRS = {
    "few": [
        (1e-25, 1e19),
        (1e-19, 1e13),
        (1e-13, 1e13),
        (1.0, 1e-13),
        (1e19, 1e-19),
        (1e25, 1e-25),
    ],
    "all": list(itertools.product(MAGNITUDES, MAGNITUDES)),
}
STEPS = {"linear": 1, "ghost": 2, "formed": 40, "conv": 6, "layer_norm": 3, "looped": 2, "wide": 3}
WIDTH = 24


class Model(nn.Module):
    """One layer of each kind, behind what scales its inputs and output gradients."""

    def __init__(self, kind: str):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        if kind == "conv":
            self.layer = nn.Conv1d(STEPS[kind], 4, 3)
        elif kind == "layer_norm":
            self.layer = nn.LayerNorm(WIDTH)
        elif kind in ("embedding", "tied"):
            self.layer = nn.Embedding(7, WIDTH)
        else:
            self.layer = nn.Linear(WIDTH, 5000 if kind == "wide" else WIDTH)
        if kind == "tied":
            self.head = nn.Linear(WIDTH, 7, bias=False)
            self.head.weight = self.layer.weight

    def forward(self, inputs: Tensor, ids: Tensor) -> list[Tensor]:
        if self.kind == "embedding":
            return [self.layer(ids)]
        if self.kind == "tied":
            return [self.head(inputs), self.layer(ids)]
        if self.kind == "looped":
            return [self.layer(inputs), self.layer(inputs.flip(-1))]
        return [self.layer(inputs)]


KINDS = ("linear", "ghost", "formed", "wide", "conv", "layer_norm", "embedding", "tied", "looped")


def losses_of(model: Model, activations: list[float], backprops: list[float]) -> Tensor:
    """Losses whose layer inputs and output gradients have these magnitudes, one per example."""
    g = torch.Generator().manual_seed(1)
    dtype, count = model.layer.weight.dtype, len(activations)
    ids = torch.tensor([[3, 1, 3]]).expand(count, -1)
    inputs = torch.randn(1, STEPS.get(model.kind, 3), WIDTH, generator=g).expand(count, -1, -1)
    if model.kind != "layer_norm":  # its own forward squares what it normalizes
        inputs = inputs * torch.tensor(activations)[:, None, None]
    size = torch.tensor(backprops)[:, None, None]
    outputs = model(inputs.to(dtype), ids)
    weights = [(torch.randn(out.shape[1:], generator=g) * size).to(dtype) for out in outputs]
    if model.kind == "tied":
        # The look-up's output gradients are as small as the inputs of the head.
        weights[1] = weights[1] / size.to(dtype) * torch.tensor(activations)[:, None, None]
    parts = zip(outputs, weights, strict=True)
    return torch.stack([(out * weight).flatten(1).sum(1) for out, weight in parts]).sum(0)


def clipped(model: Model, activations, backprops, norm: float, **options) -> Tensor:
    model.zero_grad()
    with PerExampleClipper(model, norm, **options) as clipper:
        clipper.accumulate(lambda: losses_of(model, activations, backprops))
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([grad.double().flatten() for grad in grads]) if grads else torch.zeros(1)


def truth(kind: str, activation: float, backprop: float) -> Tensor:
    model = Model(kind).double()
    losses_of(model, [activation], [backprop]).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def is_held(kind: str, activation: float, backprop: float, norm: float) -> bool:
    """Whether float32 holds the gradient and a factor for it, and the example can be kept."""
    exact = truth(kind, activation, backprop)
    largest, length = float(exact.abs().max()), float(exact.norm())
    return largest < 1e38 and norm / length > 2e-38 and max(activation, backprop) < 1e25


@pytest.mark.parametrize("pairs", slow_but(("few",), PAIRS))
@pytest.mark.parametrize("clipping", slow_but(("flat",), STYLES))
@pytest.mark.parametrize("kind", slow_but(("linear", "tied", "formed"), KINDS))
@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_lone_example_of_any_magnitude_stays_within_the_bound(engine, kind, clipping, pairs):
    model = Model(kind)
    for activation, backprop in PAIRS[pairs]:
        length = float(truth(kind, activation, backprop).norm())
        for norm in NORMS:
            got = clipped(model, [activation], [backprop], norm, clipping=clipping, engine=engine)
            case = (activation, backprop, norm, float(got.norm()), length)
            assert float(got.norm()) <= norm * (1 + 1e-5), case
            if clipping == "flat" and is_held(kind, activation, backprop, norm):
                assert float(got.norm()) >= 0.99 * min(norm, length) - 1e-37, case


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_whose_square_underflows_altogether_is_clipped(engine):
    """512 x 512 entries of 1e-6 each, from inputs whose squares are 0 in float32."""
    layer = nn.Linear(512, 512, bias=False)
    inputs = torch.full((1, 512), 1e-23)
    with PerExampleClipper(layer, 1e-6, engine=engine) as clipper:
        norms = clipper.accumulate(lambda: (layer(inputs) * 1e17).sum(1))
    assert norms.tolist() == pytest.approx([512e-6])
    assert float(layer.weight.grad.double().norm()) == pytest.approx(1e-6, rel=1e-5)


@pytest.mark.parametrize("steps", [2, 300])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_norm_counts_the_positions_whose_products_underflow(engine, steps):
    """One position of norm 8e-4 beside others of norm 0.8 whose inputs' squares are 0."""
    layer = nn.Linear(8, 8, bias=False)
    inputs, weights = torch.full((1, steps, 8), 1e-23), torch.full((1, steps, 8), 1e22)
    inputs[:, 0], weights[:, 0] = 1e-2, 1e-2
    exact = torch.einsum("btr,btc->rc", weights.double(), inputs.double())
    with PerExampleClipper(layer, 0.1, engine=engine) as clipper:
        norms = clipper.accumulate(lambda: (layer(inputs) * weights).sum((1, 2)))
    assert norms.tolist() == pytest.approx([float(exact.norm())], rel=1e-5)
    assert float(layer.weight.grad.double().norm()) <= 0.1 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("kind", "engine"),
    slow_but(
        [("linear", "two_pass"), ("tied", "book_keeping"), ("formed", "instantiate")],
        itertools.product(
            [kind for kind in KINDS if kind != "looped"],
            [engine for engine in ENGINES if engine != "loop"],
        ),
    ),
)
def test_an_example_out_of_range_leaves_the_others_as_they_are(engine, kind):
    model = Model(kind)
    ordinary = clipped(model, [1.0, 1e-3], [1.0, 1.0], 1e-2, engine=engine)
    alone = clipped(model, [1.0], [1.0], 1e-2, engine=engine)
    for extreme in ((1e30, 1e30), (1e38, 1e-38), (1e-38, 1e38), (1e25, 1e10), (1e-25, 1e-25)):
        pair = clipped(model, [1.0, extreme[0]], [1.0, extreme[1]], 1e-2, engine=engine)
        assert pair.isfinite().all() and ordinary.isfinite().all()
        assert float((pair - alone).norm()) <= 1e-2 * (1 + 1e-5), extreme


@pytest.mark.parametrize(
    ("kind", "engine"),
    slow_but_each(["linear", "formed", "wide", "conv", "tied", "looped"], ENGINES),
)
def test_an_example_of_a_gradient_that_float32_holds_is_kept_however_large(kind, engine):
    """Entries up to 2e26: the lengths of 40 positions' output gradients add up to 2e27."""
    model = Model(kind)
    for activation, backprop in ((1.0, 1e20), (1.0, 1e25), (1e12, 1e12)):
        with PerExampleClipper(model, 1.0, engine=engine) as clipper:
            norms = clipper.accumulate(lambda: losses_of(model, [activation], [backprop]))  # noqa: B023
        exact = truth(kind, activation, backprop)
        assert norms.tolist() == pytest.approx([float(exact.norm())], rel=1e-5)
        got = torch.cat([p.grad.double().flatten() for p in model.parameters()])
        assert torch.allclose(got, exact / exact.norm(), rtol=1e-3, atol=1e-6)
        model.zero_grad()


@pytest.mark.parametrize("clipping", STYLES)
def test_large_factors_lift_nothing_out_of_range(clipping):
    """Norm 1e-9 from inputs of 1e18: at C = 1e10 the plain factor would be 1e19."""
    layer = nn.Linear(4, 4, bias=False)
    inputs = torch.full((1, 4), 1e18)
    for norm in (1.0, 1e10):
        layer.zero_grad()
        with PerExampleClipper(layer, norm, clipping=clipping, engine="two_pass") as clipper:
            clipper.accumulate(lambda: (layer(inputs) * 1e-27).sum(1))
        assert float(layer.weight.grad.double().norm()) <= norm * (1 + 1e-5)
