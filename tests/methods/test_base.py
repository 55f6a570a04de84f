import pytest
from torch import nn

from dpft.methods.base import (
    METHODS,
    Method,
    block_list,
    count_parameters,
    final_norm_parameters,
    head_parameters,
    is_tied,
)
from dpft.methods.full import Full
from tests.methods.shapes import fresh
from tests.rejections import rejects


def test_a_method_is_found_by_the_name_of_its_module() -> None:
    assert "full" in METHODS.entries() and "base" not in METHODS.entries()
    assert METHODS.named("full") is Full
    assert all(issubclass(METHODS.named(name), Method) for name in METHODS.entries())


def test_an_unknown_method_is_refused_with_the_list() -> None:
    with rejects("method.name", "warp"):
        METHODS.named("warp")


def test_a_tied_parameter_counts_once_and_a_frozen_one_only_in_the_total() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(7, 3), "b": nn.Linear(3, 7, bias=False)})
    model["b"].weight = model["a"].weight
    model["c"] = nn.Linear(3, 2)
    model["c"].weight.requires_grad_(False)
    counts = count_parameters(model, new=frozenset({"c.bias", "c.weight"}))
    assert (counts.trainable, counts.new, counts.total) == (21 + 2, 2, 21 + 6 + 2)


def test_a_method_that_trains_nothing_is_refused() -> None:
    with rejects("method"):
        count_parameters(nn.Linear(2, 2).requires_grad_(False))


def names(model: nn.Module, parameters: set[nn.Parameter]) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter in parameters}


@pytest.mark.parametrize(
    ("shape", "place", "count"),
    [
        ("gpt2", "transformer.h", 2),
        ("bert-masked-lm", "bert.encoder.layer", 2),
        ("distilbert-masked-lm", "distilbert.transformer.layer", 2),
        ("albert-masked-lm", "albert.encoder.albert_layer_groups", 1),
        ("t5", "decoder.block", 2),
        ("bart", "model.decoder.layers", 2),
        ("mpt", "transformer.blocks", 2),
    ],
)
def test_the_blocks_are_the_outermost_list_of_the_decoder(shape, place, count) -> None:
    model = fresh(shape)
    assert block_list(model) is model.get_submodule(place)
    assert len(block_list(model)) == count


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("bloom", {"transformer.ln_f.weight", "transformer.ln_f.bias"}),  # not its embeddings'
        ("bart", set()),
        ("deberta-v2-classification", set()),  # LayerNorm is that of the relative embeddings
        ("phi", {"model.final_layernorm.weight", "model.final_layernorm.bias"}),
        ("t5", {"decoder.final_layer_norm.weight"}),
    ],
)
def test_the_final_norm_is_no_blocks_and_no_embeddings(shape, expected) -> None:
    model = fresh(shape)
    assert names(model, final_norm_parameters(model)) == expected


@pytest.mark.parametrize(
    ("shape", "tied"),
    [("gpt2", True), ("gpt2-untied", False), ("t5", True), ("bert-classification", False)],
)
def test_only_a_head_of_its_own_counts_as_one(shape, tied) -> None:
    model = fresh(shape)
    assert is_tied(model) is tied
    assert bool(head_parameters(model)) is not tied


def test_the_head_of_a_masked_model_is_its_transform_without_the_tied_decoder() -> None:
    model = fresh("bert-masked-lm")
    head = names(model, head_parameters(model))
    assert "cls.predictions.transform.dense.weight" in head
    assert not any("embeddings" in name for name in head)
