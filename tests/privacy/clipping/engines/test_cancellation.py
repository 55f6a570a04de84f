"""Gradients that nearly cancel: the factor must belong to the very gradient that is summed.

With automatic_v every gradient is scaled up to norm C, so a norm that rounding made too small by
a half would let the example in at twice the bound.
"""

import pytest
import torch
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.engines import ENGINES

NORM = 0.1
EXPONENTS = range(0, 12)


class Affine(nn.Module):
    """A layer norm without its normalisation's help: a weight and a bias, used ``times`` over."""

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


@pytest.mark.parametrize("clipping", ["flat", "automatic_v"])
@pytest.mark.parametrize("kind", ["bias", "linear", "layer_norm"])
@pytest.mark.parametrize("engine", ENGINES)
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


@pytest.mark.parametrize("clipping", ["flat", "automatic_v"])
@pytest.mark.parametrize("kind", ["bias", "linear", "layer_norm"])
@pytest.mark.parametrize("engine", ENGINES)
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
