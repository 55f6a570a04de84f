"""What is counted on tensors without values, against what autograd really saves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.estimates.activations import Activations, guessed_activations, trace_activations
from dpft.methods.base import METHODS
from dpft.models.losses import per_example_losses
from dpft.training.synthetic_batches import synthetic_batch
from tests.parallel.small_steps import MODELS
from tests.privacy.test_methods_twin import RECIPES, Shape
from tests.slowness import slow_but

LENGTH = 8
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def on_meta(shape: Shape, method: str = "full") -> nn.Module:
    """A model without values, as a method prepares it."""
    with torch.device("meta"):
        model = shape.build()
    return METHODS.named(method)(name=method, **RECIPES[method]).prepare(model, shape.new)


def traced(name: str, rows: int = 4, **options: bool) -> Activations:
    shape = MODELS[name]
    model = on_meta(shape)
    return trace_activations(model, rows=rows, length=LENGTH, layout=shape.layout, **options)


def really_saved(name: str, rows: int = 4) -> int:
    """Bytes of the storages that autograd saves in a forward pass, but parameters'."""
    shape = MODELS[name]
    model = shape.build().train()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            found.setdefault(place, tensor)
        return tensor

    batch = synthetic_batch(model, rows, LENGTH, layout=shape.layout, ragged=False)
    with saved_tensors_hooks(save, lambda saved: saved):
        per_example_losses(model, batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but([*MODELS][:1], MODELS))
def test_as_much_is_counted_as_autograd_saves(name: str) -> None:
    assert traced(name).saved == pytest.approx(really_saved(name), rel=0.05)


@pytest.mark.slow
def test_each_row_leaves_as_much() -> None:
    two, six = traced("gpt2", rows=2), traced("gpt2", rows=6)
    assert two.of_rows(6).saved == pytest.approx(six.saved, rel=0.01)
    assert replace(two.of_rows(6), saved=0) == replace(six, saved=0)


@pytest.mark.slow
def test_a_model_that_computes_again_keeps_less() -> None:
    def saved(*, recomputes: bool) -> int:
        sizes = {"n_layer": 4, "n_embd": 8, "n_head": 2, "vocab_size": 40}
        config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
        with torch.device("meta"):
            model = GPT2LMHeadModel(config)
        found = trace_activations(model, rows=2, length=LENGTH, recomputes=recomputes)
        return found.saved

    assert saved(recomputes=True) < 0.6 * saved(recomputes=False)


@pytest.mark.slow
def test_layers_that_train_are_named_in_order_and_frozen_ones_are_not() -> None:
    names = [use.name for use in traced("gpt2").uses]
    assert names[0] == names[-1] == "transformer.wte.weight", "tied"
    shape = MODELS["gpt2"]
    lora = trace_activations(on_meta(shape, "lora"), rows=2, length=LENGTH, layout=shape.layout)
    assert any("lora_A" in use.name for use in lora.uses)
    assert not any("base_layer.weight" in use.name for use in lora.uses)


@pytest.mark.slow
def test_what_is_guessed_is_of_the_same_size() -> None:
    found = traced("gpt2")
    guess = guessed_activations(on_meta(MODELS["gpt2"]), rows=4, length=LENGTH)
    assert 0.2 * found.saved < guess.saved < 2 * found.saved
    assert guess.largest == found.largest


@pytest.mark.slow
def test_whole_logits_are_counted() -> None:
    """The logits, and the logarithm of their softmax, which autograd saves."""
    shape, vocabulary = MODELS["gpt2"], 20_000
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=vocabulary, **NO_DROPOUT)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    found = trace_activations(model, rows=16, length=64, layout=shape.layout)
    logits = 4 * 16 * 64 * vocabulary
    assert found.largest == logits
    assert logits < found.saved < 1.1 * logits
