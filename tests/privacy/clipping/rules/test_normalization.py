"""LayerNorm, RMSNorm and GroupNorm record each example's own gradients."""

import pytest
import torch
from torch import nn
from transformers import Dinov2Config
from transformers.models.dinov2.modeling_dinov2 import Dinov2LayerScale
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated
from transformers.models.t5.modeling_t5 import T5LayerNorm

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.rules import find_rule, scale_forward
from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)

LAYER_NORMS = [
    (nn.LayerNorm(6), (4, 6)),
    (nn.LayerNorm(6), (4, 5, 6)),
    (nn.LayerNorm((5, 6)), (4, 3, 5, 6)),
    (nn.LayerNorm(6, bias=False), (4, 5, 6)),
]
OTHERS = [
    (nn.RMSNorm(6), (4, 6)),
    (nn.RMSNorm(6), (4, 5, 6)),
    (nn.RMSNorm((5, 6), eps=0.1), (4, 3, 5, 6)),
    (LlamaRMSNorm(6), (4, 6)),
    (LlamaRMSNorm(6), (4, 5, 6)),
    (LlamaRMSNorm(6), (4, 3, 5, 6)),
    (T5LayerNorm(6), (4, 5, 6)),
    (Dinov2LayerScale(Dinov2Config(hidden_size=6)), (4, 5, 6)),
    (nn.GroupNorm(2, 6), (4, 6)),
    (nn.GroupNorm(3, 6, eps=0.1), (4, 6, 5)),
    (nn.GroupNorm(1, 6), (4, 6, 3, 5)),
]
over_the_norms = pytest.mark.parametrize(("layer", "shape"), [*LAYER_NORMS, *OTHERS])


@over_the_norms
def test_norms_and_sums_equal_the_loop(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    layer = layer.double()
    assert_equals_the_loop(layer, lambda: layer(inputs))


@over_the_norms
def test_forward_and_input_gradient_are_the_layers_own(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_forward_and_input_gradient_are_the_layers_own(layer.double(), inputs)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.LayerNorm(6), (4, 5, 6)), (nn.GroupNorm(2, 6), (4, 6, 3, 5))]
)
def test_a_frozen_weight_with_a_trainable_bias(layer, shape):
    layer = layer.double()
    layer.weight.requires_grad = False
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm, T5LayerNorm])
def test_norms_of_transformers_have_a_rule(kind):
    assert find_rule(kind(6)) is scale_forward


@pytest.mark.parametrize("norm", [Qwen3_5RMSNormGated(6), MambaRMSNormGated(6, 6)])
def test_a_norm_that_takes_more_than_features_has_none(norm):
    assert find_rule(norm) is None


@pytest.mark.parametrize(("layer", "shape"), OTHERS)
def test_half_precision_gives_the_layers_own_dtype(layer, shape):
    layer, inputs = layer.float(), torch.randn(shape).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(inputs)
        with PerExampleClipper(layer, 1.0):
            assert layer(inputs).dtype == expected.dtype


class Scaled(nn.Module):
    """A group norm inside a region: the raw weight beside it makes the whole run mapped."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)
        self.scale = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, inputs):
        return self.norm(inputs * self.scale) * self.scale


def test_inside_a_region_it_is_told_from_the_extra_dimension():
    layer, inputs = Scaled().double(), torch.randn(4, 6, 3, 5, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))
