from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
)

from dpft.methods.base import METHODS, count_parameters
from dpft.methods.prefix import Prefix
from tests.methods.shapes import (
    assert_exact,
    case,
    fresh,
    logits,
    loss_of,
    new_of,
    no_warnings,
    prepared,
    shaken,
    trained_names,
)
from tests.privacy.clipping.architectures import batches
from tests.rejections import rejects
from tests.slowness import slow_but

NAMES = ("gpt2", "bert-classification", "t5")
TOLERANCE = 1e-6
"""Between the reparametrisation's product and the saved keys and values."""


def prefix(**settings) -> Prefix:
    return Prefix(name="prefix", **{"length": 3, "hidden": 5} | settings)


@pytest.mark.slow
def test_gpt2_small_trains_ten_million_parameters_without_storage() -> None:
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    counts = count_parameters(Prefix(name="prefix").prepare(model))
    # 10 x 768 embedded; 768 -> 512 -> keys and values of 12 layers x 768. Li et al. 2022,
    # section 5.2: about 10 million
    into, out = 768 * 512 + 512, 512 * 24 * 768 + 24 * 768
    assert counts.trainable == 10 * 768 + into + out == 9_857_024


@pytest.mark.parametrize("name", slow_but(["bert-classification"], NAMES))
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
    assert_exact(prepared, "t5")


SMALL = {"vocab_size": 40, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
UNFIT: dict[str, Callable[[], PreTrainedModel]] = {
    "BertForMaskedLM": lambda: fresh("bert-masked-lm"),
    "DistilBertForSequenceClassification": lambda: DistilBertForSequenceClassification(
        DistilBertConfig(**SMALL)
    ),
    "T5ForSequenceClassification": lambda: T5ForSequenceClassification(
        T5Config(**case("t5").options)
    ),
    "keys of another width than values": lambda: AutoModelForCausalLM.from_config(
        CONFIG_MAPPING["minicpm3"](**WIDE, **LATENT, **HEADS)
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_model_without_room_for_a_prefix_is_refused(kind) -> None:
    with rejects("method", "prefix"):
        prefix().prepare(UNFIT[kind]())


def test_gradient_checkpointing_is_rejected() -> None:
    model = fresh("gpt2")
    model.activation_checkpointing_enable()
    with rejects("model.gradient_checkpointing", True):
        prefix().prepare(model)


WIDE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 40}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "v_head_dim": 6}
DECODERS: dict[str, dict] = {
    "mpt": {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2},
    "falcon": {"multi_query": True, **WIDE, "num_attention_heads": 4},
    "qwen3": {"head_dim": 16, **WIDE, "num_attention_heads": 4, "num_key_value_heads": 2},
}
"""Heads whose number or width peft does not read from the configuration as the layers do."""


@pytest.mark.parametrize("kind", slow_but(["falcon"], DECODERS))
def test_a_prefix_fits_the_heads_of_the_layers(kind) -> None:
    config = CONFIG_MAPPING[kind](**DECODERS[kind])
    model = shaken(prefix().prepare(AutoModelForCausalLM.from_config(config))).eval()
    tokens = torch.arange(5, 11).view(1, 6)
    padded = torch.cat([tokens, tokens.flip(1)]).index_fill(1, torch.tensor([4, 5]), 2)
    mask = torch.ones_like(padded).index_fill(1, torch.tensor([4, 5]), 0)
    with torch.no_grad():
        alone = model(input_ids=tokens[:, :4], attention_mask=mask[:1, :4]).logits
        among = model(input_ids=padded, attention_mask=mask).logits
    assert torch.allclose(among[:1, :4], alone, atol=TOLERANCE)


STATES: dict[str, dict] = {
    "lfm2": {"layer_types": ["conv", "full_attention"], **WIDE, "num_attention_heads": 2},
    "mamba": {"state_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 40},
    "rwkv": {"attention_hidden_size": 16, **WIDE},
    "recurrent_gemma": {"lru_width": 16, **WIDE, "num_attention_heads": 2},
}
"""Models whose layers keep more than keys and values of earlier tokens."""


@pytest.mark.parametrize("method", ["prefix", "prompt"])
@pytest.mark.parametrize("kind", STATES)
def test_a_recurrent_state_takes_neither_a_prefix_nor_a_prompt(kind, method) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**STATES[kind]))
    with rejects("method", method):
        METHODS.named(method)(name=method).prepare(model)
