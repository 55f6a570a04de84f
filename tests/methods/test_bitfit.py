from pathlib import Path

import pytest
import torch

from dpft.methods.base import count_parameters
from tests.methods.shapes import (
    BERT_BASE,
    LARGE,
    ROBERTA_BASE,
    assert_exact,
    fresh,
    logits,
    loss_of,
    prepared,
    published,
    read_back,
    recipe,
    share,
    train,
    trained_names,
)
from tests.slowness import slow_but_every

LONGFORMER = {"vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1}
# Bu et al. 2022, tables 1 and 12. What is counted is the pre-trained body with its pooler and
# without any head for a task; a tied language-model head adds nothing to GPT-2 and BART.
PUBLISHED = {
    "gpt2-small": (("GPT2Config", {}), 0.082),
    "gpt2-medium": (("GPT2Config", {"n_embd": 1024, "n_layer": 24, "n_head": 16}), 0.076),
    "gpt2-large": (("GPT2Config", {"n_embd": 1280, "n_layer": 36, "n_head": 20}), 0.066),
    "roberta-base": (ROBERTA_BASE, 0.083),
    "roberta-large": (("RobertaConfig", ROBERTA_BASE[1] | LARGE), 0.077),
    "bert-base-uncased": (BERT_BASE, 0.094),
    "bert-large-uncased": (("BertConfig", BERT_BASE[1] | LARGE), 0.081),
    "bart-large": (("BartConfig", {}), 0.082),
    "vit-base-patch16": (("ViTConfig", {}), 0.120),
    "longformer-base-4096": (
        ("LongformerConfig", LONGFORMER | {"attention_window": [512] * 12}),
        0.088,
    ),
    "longformer-large-4096": (
        ("LongformerConfig", LONGFORMER | LARGE | {"attention_window": [512] * 24}),
        0.080,
    ),
}
UNION_SHAPES = ("gpt2", "bert-masked-lm", "bert-classification")


@pytest.mark.parametrize("name", slow_but_every(11, PUBLISHED))
def test_the_share_of_a_published_model_is_that_of_the_paper(name: str) -> None:
    shape, expected = PUBLISHED[name]
    assert share(recipe("bitfit"), published(*shape)) == pytest.approx(expected, abs=5e-4)


def test_the_papers_share_is_that_of_the_uncased_bert() -> None:
    # Its table says 0.094 of "BERT-base-uncased"; the cased one's smaller vocabulary gives more.
    cased = published("BertConfig", {"vocab_size": 28996})
    assert share(recipe("bitfit"), cased) == pytest.approx(0.0950, abs=5e-5)


def test_the_biases_train_and_nothing_is_added() -> None:
    model = fresh("gpt2")
    names = [name for name, _ in model.named_parameters()]
    prepared = recipe("bitfit").prepare(model)
    assert [name for name, _ in prepared.named_parameters()] == names
    assert trained_names(prepared) == {name for name in names if name.endswith(".bias")}


def test_a_new_head_trains_whole_or_its_bias_alone() -> None:
    new = frozenset({"classifier.weight", "classifier.bias"})
    model = recipe("bitfit").prepare(fresh("bert-classification"), new)
    assert new <= trained_names(model)
    assert count_parameters(model, new).new == 3 * 16 + 3
    frozen = recipe("bitfit", train_new_modules=False).prepare(fresh("bert-classification"), new)
    assert new & trained_names(frozen) == {"classifier.bias"}
    assert trained_names(frozen) == {n for n, _ in frozen.named_parameters() if n.endswith(".bias")}


def test_the_embeddings_can_train_beside_the_biases() -> None:
    model = recipe("bitfit", train_embeddings=True).prepare(fresh("gpt2"))
    added = trained_names(model) - trained_names(recipe("bitfit").prepare(fresh("gpt2")))
    assert added == {"transformer.wte.weight"}


@pytest.mark.slow
@pytest.mark.parametrize("shape", UNION_SHAPES)
def test_embeddings_and_biases_together_are_exact_and_outlive_a_save(
    shape: str, tmp_path: Path
) -> None:
    method, kind = recipe("bitfit", train_embeddings=True), loss_of(shape)
    model = prepared(method, shape)
    assert_exact(model, shape)
    train(model, kind)
    assert torch.equal(logits(read_back(method, model, shape, tmp_path), kind), logits(model, kind))


def test_on_a_model_without_biases_the_embeddings_are_left_to_train() -> None:
    model = recipe("bitfit", train_embeddings=True).prepare(fresh("t5"))
    assert trained_names(model) == {"shared.weight"}
