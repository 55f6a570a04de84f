"""The language models of conf/model that state their architecture: sizes and LoRA layers."""

import json
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from torch import nn

from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory, from_values
from dpft.config.schema import PlanConfig
from dpft.errors import InputError
from dpft.independence_check import check_model
from dpft.models.architecture import max_positions, read_architecture
from dpft.models.loading import meta_model
from dpft.models.source import ModelConfig

SIZES = {
    "smollm2-135m": 134_515_008,
    "smollm2-135m-instruct": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-360m-instruct": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-1.7b-instruct": 1_711_376_384,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "phi-4-mini": 3_836_021_760,
}
"""Numbers of parameters, as the pages of the Hub state them."""
SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2"


def random(name: str) -> ModelConfig:
    """Return a model's configuration, for which the Hub is not asked."""
    values = OmegaConf.to_object(OmegaConf.load(config_directory() / "model" / f"{name}.yaml"))
    assert isinstance(values, dict)
    return from_values(values | {"init": "random"}, ModelConfig)


@pytest.mark.parametrize("name", SIZES)
def test_an_architecture_has_the_published_size_and_lora_changes_each_layer(name: str) -> None:
    config = random(name)
    model = meta_model(read_architecture(config))
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[name]
    check_model(model)
    layers = Counter(
        path.rpartition(".")[2]
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    )
    expected = model.config.num_hidden_layers
    assert config.lora_targets
    assert {layers[target] for target in config.lora_targets} == {expected}


def test_phi_4_mini_reads_as_many_tokens_as_its_published_configuration_allows() -> None:
    """LongRoPE scales longer texts by other factors, which dpft does not support."""
    assert max_positions(read_architecture(random("phi-4-mini")).config()) == 4096


@pytest.mark.skipif(not SMOLLM2.exists(), reason="build/smollm2 is missing; run make smollm2")
def test_the_architecture_of_smollm2_is_that_of_its_config_json() -> None:
    architecture = random("smollm2-135m-instruct").architecture
    published = json.loads((SMOLLM2 / "config.json").read_text())
    converted = {"rms_norm_eps", "initializer_range"}  # GGUF rounds the first and lacks the second
    assert {key: published[key] for key in architecture if key not in converted} == {
        key: value for key, value in architecture.items() if key not in converted
    }


@pytest.mark.parametrize(
    ("old", "new"), [("llama", "llama-3.2-1b"), ("qwen", "qwen3-0.6b"), ("gemma", "gemma-3-1b")]
)
def test_an_earlier_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    assert new in SIZES
    with pytest.raises(InputError, match=f"model={old} was removed .*model={new}"):
        compose("plan", [f"model={old}"], PlanConfig)
