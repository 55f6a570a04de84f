"""The image models of conf/model: their sizes, without a network, and what they can take."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from transformers import AutoModelForImageClassification

from dpft.config.load import from_values
from dpft.independence_check import check_model
from dpft.models.architecture import read_architecture
from dpft.models.batch_norm import replace_batch_norm
from dpft.models.source import ModelConfig
from tests.slowness import slow_but_every

FOLDER = Path(__file__).parents[2] / "conf" / "model"
# Parameters with ten classes; of those in Bu et al. 2022, Table 12, as test_vision_shares counts.
SIZES = {
    "vit-base": 85_806_346,
    "vit-large": 303_311_882,
    "deit-base": 85_806_346,
    "beit-base": 85_769_674,
    "beit-large": 303_415_818,
    "convnext-base": 87_576_714,
    "swin-base": 86_753_474,
    "resnet18": 11_181_642,
    "resnet50": 23_528_522,
}
TINY = ("vit-tiny", "convnext-tiny-digits", "resnet-tiny")


def random(name: str) -> ModelConfig:
    values = OmegaConf.to_object(OmegaConf.load(FOLDER / f"{name}.yaml"))
    return from_values(values | {"init": "random"}, ModelConfig)


def model_of(name: str, device: str = "cpu") -> nn.Module:
    config = random(name)
    architecture = read_architecture(config).config()
    architecture.num_labels = 10
    with torch.device(device):
        model = AutoModelForImageClassification.from_config(architecture)
    if config.replace_batch_norm:
        assert replace_batch_norm(model)
    return model


def test_the_promised_image_models_are_there():
    assert {*SIZES, *TINY} <= {path.stem for path in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("name", slow_but_every(9, SIZES))
def test_an_architecture_has_the_published_size_and_needs_no_network(name):
    model = model_of(name, "meta")
    assert sum(p.numel() for p in model.parameters()) == SIZES[name]
    check_model(model)


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_takes_digits(name):
    model = model_of(name)
    assert read_architecture(random(name)).config().image_size == 8
    assert sum(p.numel() for p in model.parameters()) < 150_000
    assert model(pixel_values=torch.rand(2, 1, 8, 8)).logits.shape == (2, 10)
    check_model(model.train())


@pytest.mark.parametrize("name", slow_but_every(9, [*SIZES, *TINY]))
def test_the_modules_that_lora_adapts_are_linear_ones(name):
    targets, model = random(name).lora_targets, model_of(name, "meta")
    dense = {
        path.rpartition(".")[2]
        for path, module in model.base_model.named_modules()
        if isinstance(module, nn.Linear)
    }
    assert set(targets or ()) <= dense
    assert bool(targets) == bool(dense), "a ResNet has none but its head"
