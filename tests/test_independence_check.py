"""Layers that mix examples are refused, and a convolution that does not."""

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    SwitchTransformersConfig,
)

from dpft.independence_check import (
    StandardizedConv2d,
    check_model,
    fix_rotary_scale,
    pulled_back,
    standardized,
)
from dpft.models.architecture import max_positions
from tests.rejections import rejects

SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.LazyBatchNorm1d()]
)
def test_trust_rule_3_a_layer_that_normalizes_over_the_batch_is_refused_by_name(layer):
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"norm": layer}))
    with rejects("model", "1.norm") as faults:
        check_model(model)
    assert type(layer).__name__ in faults[0].message


def test_running_statistics_are_refused_and_a_plain_instance_norm_is_not():
    check_model(nn.Sequential(nn.InstanceNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4)))
    with rejects("model"):
        check_model(nn.InstanceNorm1d(4, track_running_stats=True))


@pytest.mark.parametrize(
    ("auto", "config"),
    [
        (AutoModelForCausalLM, MixtralConfig(**SMALL, num_local_experts=2)),
        (AutoModelForCausalLM, Qwen3MoeConfig(**SMALL, num_experts=2, moe_intermediate_size=8)),
        (
            AutoModelForSeq2SeqLM,
            SwitchTransformersConfig(
                vocab_size=20, d_model=8, d_ff=8, d_kv=4, num_heads=2, num_experts=2
            ),
        ),
    ],
)
def test_a_mixture_of_experts_is_refused_by_name(
    auto: type[AutoModelForCausalLM], config: PretrainedConfig
):
    with torch.device("meta"):
        model = auto.from_config(config)
    with rejects("model") as faults:
        check_model(model)
    assert "experts" in faults[0].message


def rotary(name: str) -> LlamaConfig:
    """A model whose rotary positions change with the longest example, from so many tokens on."""
    ropes = {
        "dynamic": {"factor": 2.0},
        "longrope": {
            "factor": 2.0,
            "short_factor": [1.0, 1.5],
            "long_factor": [2.0, 3.0],
            "original_max_position_embeddings": 8,
        },
    }
    rope = {"rope_theta": 1e4, "rope_type": name, **ropes[name]}
    return LlamaConfig(
        **SMALL, max_position_embeddings=16, rope_parameters=rope, initializer_range=1.0
    )


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_rotary_positions_scaled_by_the_longest_example_are_refused(name):
    with rejects("model") as faults:
        check_model(LlamaForCausalLM(rotary(name)))
    assert "rotary" in faults[0].message


@pytest.mark.parametrize(("name", "positions"), [("dynamic", 16), ("longrope", 8)])
def test_texts_within_the_models_positions_keep_their_rotary_scale(name, positions):
    config = rotary(name)
    assert max_positions(config) == positions
    torch.manual_seed(0)
    plain, fixed = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    fixed.load_state_dict(plain.state_dict())
    fix_rotary_scale(fixed)
    check_model(fixed)
    tokens = torch.randint(1, 10, (2, positions))
    assert torch.equal(fixed(tokens).logits, plain(tokens).logits)
    longer = torch.cat([tokens, tokens], dim=1)
    with torch.no_grad():
        alone = fixed(tokens).logits
        assert torch.allclose(fixed(longer).logits[:, :positions], alone, atol=1e-4)
        assert not torch.allclose(plain(longer).logits[:, :positions], alone, atol=1e-2)


def test_filters_have_mean_0_and_variance_1():
    torch.manual_seed(0)
    filters = standardized(3 * torch.randn(5, 4, 3, 3) + 7).flatten(1)
    assert torch.allclose(filters.mean(1), torch.zeros(5), atol=1e-5)
    assert torch.allclose(filters.var(1, correction=0), torch.ones(5), atol=1e-4)


def test_it_is_the_convolution_with_the_standardized_weight():
    torch.manual_seed(0)
    plain, made = nn.Conv2d(4, 6, 3, stride=2), StandardizedConv2d(4, 6, 3, stride=2)
    made.load_state_dict(plain.state_dict())
    inputs = torch.randn(2, 4, 9, 9)
    expected = torch.conv2d(inputs, standardized(plain.weight), plain.bias, stride=2)
    assert torch.equal(made(inputs), expected)


def test_pulled_back_is_the_gradient_that_autograd_takes_through_the_standardization():
    torch.manual_seed(0)
    weight = torch.randn(5, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    gradients = torch.randn(3, 5, 4, 3, 3, dtype=torch.float64)
    expected = [torch.autograd.grad(standardized(weight), weight, g)[0] for g in gradients]
    assert torch.allclose(pulled_back(weight, gradients), torch.stack(expected), rtol=1e-10)
