import pytest
import torch
from torch import nn

from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)

CASES = [
    (nn.LayerNorm(6), (4, 6)),
    (nn.LayerNorm(6), (4, 5, 6)),
    (nn.LayerNorm((5, 6)), (4, 3, 5, 6)),
    (nn.LayerNorm(6, bias=False), (4, 5, 6)),
]


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_norms_and_sums_equal_the_loop(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    layer = layer.double()
    assert_equals_the_loop(layer, lambda: layer(inputs))


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_forward_and_input_gradient_are_the_layers_own(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_forward_and_input_gradient_are_the_layers_own(layer.double(), inputs)


def test_a_frozen_weight_with_a_trainable_bias():
    layer = nn.LayerNorm(6).double()
    layer.weight.requires_grad = False
    inputs = torch.randn(4, 5, 6, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))
