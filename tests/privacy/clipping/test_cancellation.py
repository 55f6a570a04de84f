"""Gradients that nearly cancel: the factor must belong to the very gradient that is summed.

With automatic_v every gradient is scaled up to norm C, so a norm that rounding made too small by
a half would let the example in at twice the bound.
"""

import pytest
import torch
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES
from tests.slowness import slow_but_each

pytestmark = pytest.mark.usefixtures("self_check_once")

NORM = 0.1
EXPONENTS = range(0, 12)


class Affine(nn.Module):
    """A layer norm without its normalization's help: a weight and a bias, used ``times`` over."""

    def __init__(self, kind: str):
        super().__init__()
        self.layer = nn.LayerNorm(64) if kind == "layer_norm" else nn.Linear(64, 64)
        if kind == "bias":
            self.layer.weight.requires_grad = False

    def forward(self, first, second):
        return torch.stack([self.layer(first), self.layer(second)])


def moved(model) -> float:
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return float(torch.stack(squares).sum().sqrt())


@pytest.mark.parametrize(
    ("engine", "kind", "clipping"),
    slow_but_each(ENGINES, ["bias", "linear", "layer_norm"], ["flat", "automatic_v"]),
)
def test_a_layer_used_twice_to_cancel_stays_within_the_sensitivity(engine, kind, clipping):
    torch.manual_seed(0)
    model = Affine(kind)
    inputs, nudge, weights = torch.randn(3, 1, 3, 64)
    for exponent in EXPONENTS:
        small = 10.0**-exponent * nudge

        def losses(small=small):
            outputs = model(inputs, inputs + small)
            return (1e2 * weights * (outputs[0] - outputs[1] * (1 + small))).sum((1, 2))

        model.zero_grad()
        with PerExampleClipper(model, NORM, clipping=clipping, engine=engine) as clipper:
            clipper.accumulate(losses)
        assert moved(model) <= NORM * (1 + 1e-5), exponent


class Shared(nn.Module):
    """One weight that is looked up and multiplied by."""

    def __init__(self, rows: int):
        super().__init__()
        self.embedding = nn.Embedding(rows, 32)
        self.head = nn.Linear(32, rows, bias=False)
        self.head.weight = self.embedding.weight

    def losses(self, nudge: float):
        """Three examples; the second's two gradients cancel, but for a share of ``nudge``."""
        g = torch.Generator().manual_seed(2)
        values, ids = torch.randn(3, 2, 32, generator=g), torch.tensor([[1, 2], [3, 4], [5, 3]])
        picked = torch.nn.functional.one_hot(ids, len(self.embedding.weight)).float()
        signs = torch.tensor([1.0, -1.0, 0.5])[:, None, None]
        others = torch.randn(3, 2, 32, generator=g)
        looked_up = (self.embedding(ids) * values * (1 + nudge * others)).sum((1, 2))
        return looked_up + (self.head(values) * picked * signs).sum((1, 2))


def sum_and_norms(model, losses, engine, units=None):
    model.zero_grad()
    with PerExampleClipper(model, NORM, clipping="automatic_v", engine=engine) as clipper:
        norms = clipper.accumulate(losses, units)
    named = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(named), norms.double()


@pytest.mark.parametrize("rows", [6, 4200], ids=["narrow", "wide"])
@pytest.mark.parametrize("exponent", [2, 4, 6])
def test_a_tied_weight_whose_uses_cancel_has_one_sum_in_every_engine(exponent, rows):
    """A norm floored at 1e-3 of its bound would make the second example's share 100 times less."""
    torch.manual_seed(0)
    model = Shared(rows)
    found = {
        engine: sum_and_norms(model, lambda: model.losses(10.0**-exponent), engine)
        for engine in ENGINES
    }
    exact, exact_norms = found["book_keeping"]
    for engine, (got, norms) in found.items():
        # The others round what cancels when they form it in float32.
        tolerance = 1e-5 if engine == "two_pass" else 1e-6 * 10.0**exponent
        assert float((got - exact).norm()) <= tolerance * NORM, engine
        assert ((norms - exact_norms).abs() <= tolerance * exact_norms).all(), engine


@pytest.mark.parametrize("engine", ["book_keeping", "two_pass"])
def test_what_cancels_below_the_floor_is_the_gradient_that_float64_gives(engine):
    """Two positions that cancel to 1e-5, with another example beside, in float32 and float64."""
    g = torch.Generator().manual_seed(3)
    rows, others, nudge = torch.randn(3, 2, 1, 64, generator=g)
    inputs = torch.cat([rows, rows + 1e-5 * nudge], 1)
    weights = torch.cat([others, -others], 1)
    weights[1, 1] = others[1, 0]
    layer = nn.Linear(64, 64, bias=False)
    got, norms = sum_and_norms(layer, lambda: (layer(inputs) * weights).sum((1, 2)), engine)
    each = torch.einsum("btr,btc->brc", weights.double(), inputs.double())
    lengths = each.flatten(1).norm(dim=1)
    expected = (each * (NORM / lengths)[:, None, None]).sum(0).flatten()
    assert torch.allclose(norms, lengths, rtol=1e-5)
    assert float((got - expected).norm()) <= 1e-5 * NORM


@pytest.mark.parametrize(
    ("engine", "kind", "clipping"),
    slow_but_each(ENGINES, ["bias", "linear", "layer_norm"], ["flat", "automatic_v"]),
)
def test_a_unit_whose_rows_cancel_stays_within_the_sensitivity(engine, kind, clipping):
    torch.manual_seed(1)
    model = Affine(kind).layer
    rows, nudge, weights = torch.randn(3, 1, 3, 64)
    units = torch.zeros(2, dtype=torch.long)
    for exponent in EXPONENTS:
        small = 10.0**-exponent * nudge
        inputs = torch.cat([rows, rows + small])
        signs = torch.cat([1e2 * weights, -1e2 * (weights + small)])

        def losses(inputs=inputs, signs=signs):
            return (signs * model(inputs)).sum((1, 2))

        model.zero_grad()
        with PerExampleClipper(model, NORM, clipping=clipping, engine=engine) as clipper:
            clipper.accumulate(losses, units)
        assert moved(model) <= NORM * (1 + 1e-5), exponent
