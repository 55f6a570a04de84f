import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    SwitchTransformersConfig,
)

from dpft.batch_mixing import check_model
from dpft.errors import InputError

SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def test_gpt2_passes():
    check_model(GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2)))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.LazyBatchNorm1d()]
)
def test_trust_rule_3_a_layer_that_normalizes_over_the_batch_is_refused_by_name(layer):
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"norm": layer}))
    with pytest.raises(InputError, match=r"module 1\.norm \(.*BatchNorm.*over the batch"):
        check_model(model)


def test_running_statistics_are_refused_and_a_plain_instance_norm_is_not():
    check_model(nn.Sequential(nn.InstanceNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4)))
    with pytest.raises(InputError, match="running statistics"):
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
    with pytest.raises(InputError, match="routes tokens among experts"):
        check_model(model)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "longrope",
            "factor": 2.0,
            "short_factor": [1.0, 1.0],
            "long_factor": [2.0, 2.0],
            "original_max_position_embeddings": 8,
        },
    ],
)
def test_rotary_positions_scaled_by_the_longest_example_are_refused(rope):
    config = LlamaConfig(
        **SMALL, max_position_embeddings=16, rope_parameters={"rope_theta": 1e4, **rope}
    )
    with pytest.raises(InputError, match="longest example of the batch"):
        check_model(LlamaForCausalLM(config))


def test_plain_rotary_positions_pass():
    check_model(LlamaForCausalLM(LlamaConfig(**SMALL)))
