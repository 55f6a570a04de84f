import pytest
from torch import nn

from dpft.methods.base import block_list, final_norm_parameters, head_parameters, is_norm, is_tied
from tests.methods.shapes import fresh


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


def test_a_norm_is_known_by_its_class() -> None:
    found = {type(module).__name__ for module in fresh("llama-tied").modules() if is_norm(module)}
    assert found == {"LlamaRMSNorm"}
    assert is_norm(nn.LayerNorm(2)) and is_norm(nn.GroupNorm(1, 2)) and not is_norm(nn.Linear(2, 2))
