from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MptConfig,
    MptForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
)

from dpft.errors import InputError
from dpft.methods.base import count_parameters
from dpft.methods.prefix import Prefix
from tests.methods.shapes import (
    case,
    fresh,
    logits,
    loss_of,
    new_of,
    no_warnings,
    off_the_loop,
    prepared,
    shaken,
    trained_names,
)
from tests.privacy.clipping.architectures import batches

NAMES = ("gpt2", "bert-classification", "t5")
TOLERANCE = 1e-6
"""Between the reparametrisation's product and the saved keys and values."""


def prefix(**settings) -> Prefix:
    return Prefix(name="prefix", **{"length": 3, "hidden": 5} | settings)


def test_gpt2_small_trains_ten_million_parameters_without_storage() -> None:
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    counts = count_parameters(Prefix(name="prefix").prepare(model))
    # 10 x 768 embedded; 768 -> 512 -> keys and values of 12 layers x 768. Li et al. 2022,
    # section 5.2: about 10 million
    into, out = 768 * 512 + 512, 512 * 24 * 768 + 24 * 768
    assert counts.trainable == 10 * 768 + into + out == 9_857_024


@pytest.mark.parametrize("name", NAMES)
def test_only_the_prefix_and_a_new_head_train(name) -> None:
    prepared = prefix().prepare(fresh(name), new_of(name))
    own = {parameter for parameter in trained_names(prepared) if "prompt_encoder" in parameter}
    assert len(own) == 5
    assert len(trained_names(prepared)) == 5 + len(new_of(name))
    assert count_parameters(prepared, new_of(name)).new == (51 if new_of(name) else 0)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_plain_peft_loads_the_folder(tmp_path: Path) -> None:
    method = prefix(train_biases=True)
    model = prepared(method, "gpt2")
    method.save(model, tmp_path)
    loaded = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(tmp_path / "base"), tmp_path)
    assert torch.allclose(logits(loaded, "gpt2"), logits(model, "gpt2"), atol=TOLERANCE)


def test_position_ids_count_after_the_prefix_without_a_warning() -> None:
    model = prepared(prefix(), "gpt2")
    with no_warnings():
        with_positions = loss_of("gpt2")(model, batches.examples())
    without = batches.causal_without_positions(model, batches.examples())
    assert torch.allclose(with_positions, without, atol=1e-6)


@pytest.mark.slow
def test_the_prefix_fits_heads_and_depth_of_the_decoder() -> None:
    config = T5Config(**case("t5").options | {"num_decoder_layers": 3, "num_heads": 3})
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(config).eval()
    prepared = shaken(prefix().prepare(model)).eval()
    sizes = prepared.peft_config["default"]
    assert (sizes.num_layers, sizes.num_attention_heads, sizes.token_dim) == (3, 3, 18)
    assert off_the_loop(prepared, "t5") < 1e-5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"length": 0}, "method.length must be at least 1, got 0"), ({"hidden": 0}, "method.hidden")],
)
def test_settings_that_cannot_be_are_refused(settings, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        prefix(**settings)


def unfit() -> dict[str, object]:
    small = DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
    return {
        "BertForMaskedLM": fresh("bert-masked-lm"),
        "DistilBertForSequenceClassification": DistilBertForSequenceClassification(small),
        "T5ForSequenceClassification": T5ForSequenceClassification(T5Config(**case("t5").options)),
    }


@pytest.mark.parametrize("kind", unfit())
def test_a_model_without_room_for_a_prefix_is_refused(kind) -> None:
    with pytest.raises(InputError, match=f"^method=prefix needs .*, got {kind}; choose another"):
        prefix().prepare(unfit()[kind])


def test_what_peft_refuses_is_refused_in_one_sentence() -> None:
    model = MptForCausalLM(MptConfig(vocab_size=40, d_model=16, n_layers=1, n_heads=2))
    with pytest.raises(InputError, match=r"^method=prefix must fit the model, got MptForCausalLM"):
        prefix().prepare(model)


def test_gradient_checkpointing_is_refused() -> None:
    model = fresh("gpt2")
    model.activation_checkpointing_enable()
    with pytest.raises(InputError, match="method=prefix needs model.gradient_checkpointing=false"):
        prefix().prepare(model)
