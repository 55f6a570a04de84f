from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForSequenceClassification,
)

from dpft.methods.base import count_parameters
from dpft.methods.prompt import Prompt
from tests.methods.shapes import case, fresh, new_of, prepared
from tests.rejections import rejects

NAMES = ("gpt2", "bert-classification", "t5")


def prompt(**settings) -> Prompt:
    return Prompt(name="prompt", **{"num_virtual_tokens": 3} | settings)


def test_gpt2_small_trains_a_row_for_each_token_without_storage() -> None:
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    counts = count_parameters(Prompt(name="prompt").prepare(model))
    assert counts.trainable == 20 * 768


@pytest.mark.parametrize("name", NAMES)
def test_only_the_prompt_and_a_new_head_train(name) -> None:
    prepared = prompt().prepare(fresh(name), new_of(name))
    counts = count_parameters(prepared, new_of(name))
    assert counts.trainable - counts.new == 3 * 16
    assert counts.new == (51 if new_of(name) else 0)


def test_the_prompt_follows_the_global_seed() -> None:
    first, again, other = fresh("gpt2"), fresh("gpt2"), fresh("gpt2")
    drawn = []
    for model, seed in ((first, 5), (again, 5), (other, 6)):
        torch.manual_seed(seed)
        prepared = prompt().prepare(model)
        drawn.append(prepared.get_parameter("prompt_encoder.default.embedding.weight"))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Position ids are not supported")
def test_logits_are_those_of_plain_peft_after_the_prompt(tmp_path: Path) -> None:
    model = prepared(prompt(), "gpt2")
    prompt().save(model, tmp_path)
    plain = PeftModel.from_pretrained(fresh("gpt2"), tmp_path)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    got = model(**inputs).logits
    assert got.shape == (2, 4, 40)
    assert torch.allclose(got, plain(**inputs).logits[:, 3:], atol=1e-6)


UNFIT: dict[str, Callable[[], PreTrainedModel]] = {
    "BertForMaskedLM": lambda: fresh("bert-masked-lm"),
    "GPT2ForSequenceClassification": lambda: GPT2ForSequenceClassification(
        GPT2Config(**case("gpt2").options)
    ),
    "T5ForSequenceClassification": lambda: T5ForSequenceClassification(
        T5Config(**case("t5").options)
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_model_that_cannot_take_a_prompt_is_refused(kind) -> None:
    with rejects("method", "prompt"):
        prompt().prepare(UNFIT[kind]())
