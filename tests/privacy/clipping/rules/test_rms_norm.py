import pytest
import torch
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)

CASES = [
    (nn.RMSNorm(6), (4, 6)),
    (nn.RMSNorm(6), (4, 5, 6)),
    (nn.RMSNorm((5, 6), eps=0.1), (4, 3, 5, 6)),
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


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_half_precision_gives_the_layers_own_dtype(layer, shape):
    layer, inputs = layer.float(), torch.randn(shape).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(inputs)
        with PerExampleClipper(layer, 1.0):
            assert layer(inputs).dtype == expected.dtype
