"""Dense layers: their gradients, and what autocast makes of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from dpft.privacy.clipping.rules import find_rule, for_normalization, for_product, sum_dtype
from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)

SHAPES = [(4, 3), (4, 5, 3), (4, 2, 5, 3), (1, 40, 3)]
LAYERS = {
    "linear": lambda: nn.Linear(3, 6),
    "linear without bias": lambda: nn.Linear(3, 6, bias=False),
    "conv1d": lambda: Conv1D(6, 3),
    "falcon's": lambda: FalconLinear(3, 6),
}


def test_falcons_layer_has_a_rule_and_what_inherits_from_it_has_none():
    class Doubled(FalconLinear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    assert find_rule(FalconLinear(3, 6)) is find_rule(nn.Linear(3, 6))
    assert find_rule(Doubled(3, 6)) is None


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("enabled", [True, False])
def test_inputs_of_a_product_are_cast_as_a_dense_layers_are(dtype, enabled):
    inputs, weight = torch.ones(2, 3, dtype=dtype), torch.ones(4, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        assert for_product(inputs).dtype == F.linear(inputs, weight).dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_a_normalization_stay_as_they_are_on_a_cpu(dtype):
    inputs = torch.ones(2, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert for_normalization(inputs) is inputs
        assert F.layer_norm(inputs, (3,)).dtype == dtype


def test_gradients_are_added_up_in_float32_or_better():
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    found = [sum_dtype(torch.ones(1, dtype=dtype)) for dtype in dtypes]
    assert found == [torch.float32, torch.float32, torch.float32, torch.float64]
