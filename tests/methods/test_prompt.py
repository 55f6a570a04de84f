from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    T5Config,
    T5ForSequenceClassification,
)

from dpft.errors import InputError
from dpft.generation.decoding import DecodeConfig, generate_texts
from dpft.methods.base import count_parameters
from dpft.methods.prompt import Prompt
from tests.methods import adapters
from tests.methods.adapters import (
    CLASSIFIER,
    Digits,
    fresh,
    off_the_loop,
    outputs,
    trainable,
    trained,
)
from tests.slowness import slow, slow_but

NAMES = ("gpt2", "bert-classification", "t5")
UNIONS = ({}, {"train_biases": True, "train_embeddings": True})


def prompt(**settings) -> Prompt:
    return Prompt(name="prompt", **{"num_virtual_tokens": 3} | settings)


def new_of(name: str) -> frozenset[str]:
    return CLASSIFIER if name == "bert-classification" else frozenset()


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


@pytest.mark.parametrize("union", slow_but([{}], UNIONS), ids=str)
@pytest.mark.parametrize("name", slow_but(("gpt2",), NAMES))
def test_clipped_sums_and_norms_equal_the_loops(name, union) -> None:
    assert off_the_loop(trained(prompt(**union), name, new_of(name)), name) < 1e-5


@pytest.mark.parametrize("union", slow_but([{}], UNIONS), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_gives_the_same_outputs_bit_for_bit(name, union, tmp_path: Path) -> None:
    method = prompt(**union)
    model = trained(method, name, new_of(name))
    with adapters.no_warnings():
        loaded = adapters.restored(method, model, name, tmp_path)
        assert torch.equal(outputs(loaded, name), outputs(model, name))
    assert not torch.allclose(outputs(loaded, name), outputs(fresh(name), name), atol=1e-4)
    assert not trainable(loaded) and not loaded.training


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Position ids are not supported")
def test_logits_are_those_of_plain_peft_after_the_prompt(tmp_path: Path) -> None:
    model = trained(prompt(), "gpt2")
    prompt().save(model, tmp_path)
    plain = PeftModel.from_pretrained(fresh("gpt2"), tmp_path)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    got = model(**inputs).logits
    assert got.shape == (2, 4, 40)
    assert torch.allclose(got, plain(**inputs).logits[:, 3:], atol=1e-6)


@pytest.mark.parametrize("restored", [False, True], ids=["trained", "restored"])
@pytest.mark.parametrize("beams", [1, *slow((4,))])
def test_texts_do_not_depend_on_the_batches(beams, restored, tmp_path: Path) -> None:
    model = adapters.writer(prompt())
    if restored:
        model = adapters.restored(prompt(), model, "gpt2", tmp_path)
    prompts = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    config = DecodeConfig(num_beams=beams, max_new_tokens=6)
    with adapters.no_warnings():
        together = generate_texts(model, Digits(), prompts, config=config, batch_size=3)
    alone = generate_texts(model, Digits(), prompts, config=config, batch_size=1)
    assert together == alone and len(set(together)) > 1
    if beams == 1:
        assert together == [adapters.greedy(model, ids, 6) for ids in prompts]


def test_t5_writes_what_its_whole_forward_passes_say() -> None:
    model = trained(prompt(), "t5")
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    written = model.generate(input_ids=ids, num_beams=1, do_sample=False, max_new_tokens=6)
    for row in range(2):
        told = adapters.greedy_decoder(model, ids[row : row + 1], written.shape[1] - 1)
        assert written[row].tolist() == told


def test_gradient_checkpointing_changes_no_gradient() -> None:
    plain = trained(prompt(), "gpt2")
    model = fresh("gpt2")
    model.activation_checkpointing_enable()
    prepared = adapters.without_dropout(adapters.shaken(prompt().prepare(model)).train())
    batch, kind = adapters.examples(), adapters.KINDS["gpt2"]
    expected = adapters.clipped(plain, kind, batch, "loop")
    assert adapters.difference(adapters.clipped(prepared, kind, batch, "auto"), expected) < 1e-5


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="method.num_virtual_tokens must be at least 1, got 0"):
        prompt(num_virtual_tokens=0)


def unfit() -> dict[str, object]:
    return {
        "BertForMaskedLM": fresh("bert-masked-lm"),
        "GPT2ForSequenceClassification": GPT2ForSequenceClassification(GPT2Config(**adapters.GPT2)),
        "T5ForSequenceClassification": T5ForSequenceClassification(T5Config(**adapters.T5)),
    }


@pytest.mark.parametrize("kind", unfit())
def test_a_model_that_cannot_take_a_prompt_is_refused(kind) -> None:
    with pytest.raises(InputError, match=f"^method=prompt needs .*, got {kind}; choose another"):
        prompt().prepare(unfit()[kind])
