import pytest

from dpft.errors import InputError
from tests.methods.shapes import ROBERTA_BASE, fresh, published, recipe, trained_names


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


@pytest.mark.parametrize("shape", ["gpt2", "bert-masked-lm", "t5", "bart"])
def test_a_tied_language_model_is_refused_with_what_to_choose(shape: str) -> None:
    with pytest.raises(InputError, match="tied to its embeddings; .*method=top2 .*method=bitfit"):
        recipe("linear_probe").prepare(fresh(shape))


def test_a_body_without_a_head_has_nothing_to_probe() -> None:
    with pytest.raises(InputError, match="must leave a parameter to train"):
        recipe("linear_probe").prepare(published(*ROBERTA_BASE))
