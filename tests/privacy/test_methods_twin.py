"""Twin batches for every method on every kind of model, in each phase, with dpft's own losses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    IGNORED_LABEL,
    LABEL_WORDS,
    MASKED,
    SEQ2SEQ,
    TEXT,
)
from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.methods.base import METHODS, Method
from dpft.models.architecture import PooledClassifier
from dpft.privacy.clipping import PerExampleClipper
from tests.clipped_batches import checked_clipper
from tests.privacy.clipping.oracle import gradients_of, total_norm
from tests.slowness import slow_but

VOCABULARY, WORDS = 40, (5, 6, 7)
NORM, SECOND_NORM = 0.01, 0.0025
IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = IDS | {"n_positions": 32, "n_embd": 8, "n_layer": 1, "n_head": 2}
BERT = IDS | {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT |= {"intermediate_size": 12, "max_position_embeddings": 32, "num_labels": len(WORDS)}
T5 = IDS | {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0}
HEAD = frozenset({"classifier.weight", "classifier.bias"})


@dataclass(frozen=True)
class Shape:
    """A kind of model, as a task uses it."""

    build: Callable[[], PreTrainedModel]
    layout: Any
    """A ``Layout``."""
    new: frozenset[str] = frozenset()


CLASSIFICATION = TextLayout(kind=CLASSIFIER, answer=CLASSES, outputs=len(WORDS))
SEQ2SEQ_TEXT = TextLayout(kind=SEQ2SEQ, takes_position_ids=False)
SHAPES = {
    "gpt2": Shape(lambda: GPT2LMHeadModel(GPT2Config(**GPT2)), TextLayout(kind=CAUSAL)),
    "bert-words": Shape(
        lambda: BertForMaskedLM(BertConfig(**BERT)),
        TextLayout(kind=MASKED, answer=LABEL_WORDS, words=WORDS),
    ),
    "bert-cls": Shape(
        lambda: BertForSequenceClassification(BertConfig(**BERT)), CLASSIFICATION, HEAD
    ),
    "bert-mean": Shape(lambda: PooledClassifier(BertConfig(**BERT)), CLASSIFICATION, HEAD),
    "t5-text": Shape(lambda: T5ForConditionalGeneration(T5Config(**T5)), SEQ2SEQ_TEXT),
    "t5-words": Shape(
        lambda: T5ForConditionalGeneration(T5Config(**T5)),
        replace(SEQ2SEQ_TEXT, answer=LABEL_WORDS, words=WORDS),
    ),
}
RECIPES: dict[str, dict] = {
    "adapter": {"bottleneck": 4, "train_norms": True},
    "bitfit": {},
    "compacter": {"bottleneck": 4, "n": 2},
    "full": {},
    "linear_probe": {},
    "lora": {"rank": 2, "train_biases": True},
    "norms": {},
    "prefix": {"length": 3, "hidden": 4},
    "prompt": {"num_virtual_tokens": 3},
    "retrain": {},
    "rgp": {"rank": 2, "train_embeddings": True},
    "top2": {"blocks": 1},
    "two_phase": {"bitfit_max_grad_norm": SECOND_NORM},
}
"""Settings that fit the small models; a method without any has not been tried, and fails."""
REFUSED = {
    "bitfit": {"t5-text", "t5-words"},  # T5 has no biases
    "two_phase": {"t5-text", "t5-words"},
    "linear_probe": {"gpt2", "bert-words", "t5-text", "t5-words"},  # tied heads
    "prefix": {"bert-words", "bert-mean"},  # peft has no such task
    "prompt": {"bert-words", "bert-mean"},
}
GRID = [
    (name, shape)
    for name in METHODS.entries()
    for shape in SHAPES
    if shape not in REFUSED.get(name, ())
]
FAST = [(name, "gpt2") for name in ("full", "lora")] + [("full", "bert-words")]
"""The kinds of layers that methods train; make test-slow tries every method on every model."""


def prepared(name: str, shape: str) -> tuple[Method, PreTrainedModel]:
    """A prepared model far from where training starts, without dropout."""
    assert name in RECIPES, f"method={name} needs a recipe here, so that its sensitivity is tested"
    method = METHODS.named(name)(name=name, **RECIPES[name])
    torch.manual_seed(0)
    model = method.prepare(SHAPES[shape].build().eval(), SHAPES[shape].new).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return method, model


def rows(layout: TextLayout) -> list[TokenizedExample]:
    """Four ragged rows, the last one the longest: without it the others have less padding."""
    generator = torch.Generator().manual_seed(5)
    return [row(layout, number, length, generator) for number, length in enumerate((5, 7, 3, 11))]


def row(
    layout: TextLayout, number: int, length: int, generator: torch.Generator
) -> TokenizedExample:
    ids = torch.randint(8, VOCABULARY, (length,), generator=generator).tolist()
    half = length // 2
    if layout.answer != TEXT:
        labels = [float(index == number % len(WORDS)) for index in range(len(WORDS))]
        types = [0] * half + [1] * (length - half) if layout.kind == CLASSIFIER else None
        return TokenizedExample(input_ids=ids, labels=labels, token_type_ids=types, answer=half)
    unread = 0 if layout.kind == SEQ2SEQ else half
    return TokenizedExample(input_ids=ids, labels=[IGNORED_LABEL] * unread + ids[half:])


def clipped_sum(
    clipper: PerExampleClipper,
    model: PreTrainedModel,
    layout: TextLayout,
    examples: list[TokenizedExample],
) -> dict[str, torch.Tensor]:
    model.zero_grad()
    clipper.accumulate(layout.collate(examples))
    return gradients_of(model)


def test_every_method_has_a_recipe() -> None:
    assert {name for name, _ in GRID} == RECIPES.keys()


@pytest.mark.parametrize(("name", "shape"), slow_but(FAST, GRID))
def test_trust_rule_2_one_example_moves_the_sum_by_at_most_the_sensitivity(
    name: str, shape: str
) -> None:
    """Every gradient is longer than the norm, so that one example moves the sum by just it."""
    method, model = prepared(name, shape)
    layout = SHAPES[shape].layout
    examples = rows(layout)
    for step, phase in enumerate(method.phases(2, lambda epochs: 1)):
        method.begin_step(model, step)
        sensitivity = phase.max_grad_norm or NORM
        with checked_clipper(model, sensitivity, layout=layout, engine="book_keeping") as clipper:
            assert clipper.sensitivity == sensitivity
            everyone = clipped_sum(clipper, model, layout, examples)
            rest = clipped_sum(clipper, model, layout, examples[:-1])
        moved = total_norm({key: everyone[key].double() - rest[key] for key in everyone})
        assert sensitivity * 0.999 < moved <= sensitivity * (1 + 1e-5)


@pytest.mark.parametrize(
    ("name", "shape"), sorted((name, shape) for name in REFUSED for shape in REFUSED[name])
)
def test_what_is_left_out_of_the_grid_is_refused(name: str, shape: str) -> None:
    with pytest.raises(InputError):
        prepared(name, shape)
