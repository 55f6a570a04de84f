import pytest
from torch import nn
from transformers import GenerationConfig

from dpft.generation.inference import evaluation_mode, generation_defaults


def test_every_module_returns_to_its_own_mode():
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model.train()
    model[1].eval()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_modes_return_after_an_error():
    model = nn.Dropout()
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert model.training


def test_generation_settings_return_to_the_wrapped_model():
    inner = nn.Linear(1, 1)
    inner.generation_config = own = GenerationConfig(repetition_penalty=2.0)
    wrapper = nn.Sequential(inner)
    with generation_defaults(wrapper, blank := GenerationConfig()):
        assert inner.generation_config is blank
    assert inner.generation_config is own
    assert "generation_config" not in vars(wrapper)
