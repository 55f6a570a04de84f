from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from dpft.methods.base import count_parameters
from dpft.methods.full import Full


def tiny() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=1))


def test_every_parameter_trains_even_one_that_was_frozen() -> None:
    model = tiny().requires_grad_(False)
    prepared = Full(name="full").prepare(model)
    assert all(parameter.requires_grad for parameter in prepared.parameters())
    counts = count_parameters(prepared)
    assert counts.trainable == counts.total and counts.new == 0


def test_the_saved_model_is_what_hugging_face_loads(tmp_path: Path) -> None:
    model = tiny()
    Full(name="full").save(model, tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name))
