"""Bits by which processes know that they compute alike."""

import torch
from transformers import GPT2LMHeadModel

from dpft.data.batches import TextLayout
from dpft.runs.together import bits_of_a_gradient, processor
from tests.training import toy


def bits(model: GPT2LMHeadModel, precision: str = "fp32") -> str:
    return bits_of_a_gradient(model, TextLayout(), max_length=9, precision=precision)


def test_the_same_model_gives_the_same_bits_and_stays_as_it_is() -> None:
    model = toy.tiny_model().train()
    assert bits(model) == bits(model)
    assert model.training and all(p.grad is None for p in model.parameters())


def test_a_computation_that_rounds_otherwise_gives_others() -> None:
    model = toy.tiny_model()
    before = bits(model)
    assert bits(model, "bf16") != before
    name, parameter = next(iter(model.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(9.0))
    assert bits(model) != before, name


def test_a_processor_is_known_by_what_decides_the_order_of_its_sums() -> None:
    assert str(torch.get_num_threads()) in processor(torch.device("cpu"))
