import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)

SHAPES = [(4, 3), (4, 5, 3), (4, 2, 5, 3), (1, 40, 3)]
LAYERS = {
    "linear": lambda: nn.Linear(3, 6),
    "linear without bias": lambda: nn.Linear(3, 6, bias=False),
    "conv1d": lambda: Conv1D(6, 3),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().double()


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_sums_equal_the_loop(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_input_gradient_are_the_layers_own(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_forward_and_input_gradient_are_the_layers_own(layer, inputs)


def test_a_frozen_weight_with_a_trainable_bias():
    layer = nn.Linear(3, 6).double()
    layer.weight.requires_grad = False
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


def test_a_layer_used_twice_has_one_gradient():
    layer = nn.Linear(3, 3).double()
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(layer(inputs).tanh()))
