from pathlib import Path

import pytest
import torch

from tests.methods.shapes import (
    ROBERTA_BASE,
    auto_class,
    fresh,
    published,
    recipe,
    trained_names,
)
from tests.rejections import rejects


def test_of_a_classifier_what_lies_outside_the_body_trains() -> None:
    model = published(*ROBERTA_BASE, "AutoModelForSequenceClassification")
    assert trained_names(recipe("linear_probe").prepare(model)) == {
        "classifier.dense.weight",
        "classifier.dense.bias",
        "classifier.out_proj.weight",
        "classifier.out_proj.bias",
    }


def test_a_pretrained_pooler_stays_and_a_new_one_trains() -> None:
    head = {"classifier.weight", "classifier.bias"}
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    method = recipe("linear_probe")
    known = frozenset(head)
    assert trained_names(method.prepare(fresh("bert-classification"), known)) == head
    model = method.prepare(fresh("bert-classification"), known | pooler)
    assert trained_names(model) == head | pooler


@pytest.mark.parametrize("shape", ["gpt2-untied", "llama-untied"])
def test_of_an_untied_language_model_the_head_trains(shape: str) -> None:
    assert trained_names(recipe("linear_probe").prepare(fresh(shape))) == {"lm_head.weight"}


def test_a_tied_head_and_a_body_without_a_head_are_rejected() -> None:
    with rejects("method.untie", False):
        recipe("linear_probe").prepare(fresh("bart"))
    with rejects("method", "linear_probe"):
        recipe("linear_probe").prepare(published(*ROBERTA_BASE))


def test_an_untied_copy_computes_as_before_trains_alone_and_is_saved(tmp_path: Path) -> None:
    """Li et al. 2022's code: lm_head begins as a copy of the embeddings (run_language_modeling)."""
    model, ids = fresh("gpt2"), torch.tensor([[3, 1, 4, 1, 5]])
    before = model(ids).logits
    prepared = recipe("linear_probe", untie=True).prepare(model)
    assert trained_names(prepared) == {"lm_head.weight"}
    assert torch.equal(prepared(ids).logits, before)
    embeddings = prepared.get_input_embeddings().weight
    with torch.no_grad():
        prepared.lm_head.weight += 1.0
    assert not torch.equal(prepared.lm_head.weight, embeddings)
    prepared.save_pretrained(tmp_path)
    loaded = auto_class("gpt2").from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, prepared.lm_head.weight)
    assert torch.equal(loaded.get_input_embeddings().weight, embeddings)


@pytest.mark.parametrize("shape", ["bart", "bert-masked-lm"])
def test_only_a_causal_model_is_untied(shape: str) -> None:
    with rejects("method.untie", True):
        recipe("linear_probe", untie=True).prepare(fresh(shape))
