"""A prompt is read once for all of its beams, and what is written is what transformers writes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dpft.generation.prefill import prompts_read_once
from dpft.methods.base import METHODS
from tests.models import small
from tests.slowness import slow_but

SIZES = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
HALVES = {f"{half}_{name}": size for half in ("encoder", "decoder")
          for name, size in {"layers": 2, "attention_heads": 2, "ffn_dim": 24}.items()}  # fmt: skip
WRITERS = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, **SIZES},
    "bloom": {**SIZES, "n_head": 2, "n_layer": 2},
    "llama": GROUPED,
    "mistral, sliding window": {**GROUPED, "sliding_window": 3},
    "falcon_h1, states beside the cache": {
        **GROUPED, "mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4,
        "mamba_n_groups": 1, "mamba_chunk_size": 4,
    },
    "t5": {**SIZES, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2,
           "decoder_start_token_id": 0},
    "bart": {**SIZES, **HALVES, "d_model": 16, "decoder_start_token_id": 0,
             "forced_eos_token_id": None},
}  # fmt: skip
PROMPTS = [[5, 9, 7, 8, 4, 11], [6], [30, 12], [12, 11, 14, 40], [20, 21, 22]]
LENGTH = max(map(len, PROMPTS))
BEAMS, WRITTEN = 4, 5


def writer(name: str) -> PreTrainedModel:
    """A model whose next-token distributions are far from uniform, the same every time."""
    config = CONFIG_MAPPING[name.partition(",")[0]](**WRITERS[name])
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model.eval()


def written(model: nn.Module, prompts=PROMPTS, **settings: object) -> list[list[int]]:
    """What plain transformers writes after the prompts."""
    seq2seq = model.config.is_encoder_decoder
    length = max(map(len, prompts))
    padding = [[0] * (length - len(prompt)) for prompt in prompts]
    pairs = list(zip(prompts, padding, strict=True))
    ids = [prompt + pad if seq2seq else pad + prompt for prompt, pad in pairs]
    ones = [([1] * len(prompt), pad) for prompt, pad in pairs]
    mask = [one + pad if seq2seq else pad + one for one, pad in ones]
    with torch.no_grad():
        found = model.generate(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False,
            num_beams=BEAMS, max_new_tokens=WRITTEN, **settings,
        )  # fmt: skip
    return found.tolist()


@contextmanager
def tokens_read(layer: nn.Module) -> Iterator[list[int]]:
    """Counts the tokens, or their states, that each call of the layer is given."""
    counts: list[int] = []
    hook = layer.register_forward_pre_hook(
        lambda _, args: counts.append(args[0].shape[0] * args[0].shape[1])
    )
    yield counts
    hook.remove()


@pytest.mark.parametrize("name", slow_but([*WRITERS][:3], WRITERS))
def test_texts_are_those_of_transformers_alone(name: str) -> None:
    model = writer(name)
    for prompts in (PROMPTS, PROMPTS[:1], [[7]]):
        expected = written(model, prompts)
        with prompts_read_once(model, BEAMS):
            assert written(model, prompts) == expected


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("t5", "bart")])
def test_a_decoder_reads_each_prompt_once_and_then_a_token_for_each_beam(name: str) -> None:
    model = writer(name)
    with tokens_read(model.get_input_embeddings()) as copies:
        written(model)
    with tokens_read(model.get_input_embeddings()) as once, prompts_read_once(model, BEAMS):
        written(model)
    steps = [BEAMS * len(PROMPTS)] * (WRITTEN - 1)
    assert copies == [BEAMS * len(PROMPTS) * LENGTH, *steps]
    assert once == [len(PROMPTS) * LENGTH, *steps]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("t5", "decoder.block.0.layer.1.EncDecAttention.k"),
        ("bart", "model.decoder.layers.0.encoder_attn.k_proj"),
    ],
)
def test_a_decoder_makes_keys_of_what_the_encoder_read_once_for_each_input(name, keys) -> None:
    model = writer(name)
    with tokens_read(model.get_submodule(keys)) as counts, prompts_read_once(model, BEAMS):
        written(model)
    assert counts == [len(PROMPTS) * LENGTH]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.parametrize("method", ["lora", "prefix", "prompt"])
def test_what_peft_adds_is_read_along(method: str, name: str) -> None:
    settings = {"lora": {"rank": 2, "targets": {"gpt2": ("c_attn",), "t5": ("q", "v")}[name]}}
    torch.manual_seed(0)
    model = METHODS.named(method)(name=method, **settings.get(method, {})).prepare(writer(name))
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    model.eval()
    expected = written(model)
    projection = "transformer.h.0.attn.c_attn" if name == "gpt2" else "decoder.block.0.layer.0"
    layer = next(layer for path, layer in model.named_modules() if path.endswith(projection))
    with tokens_read(layer) as counts, prompts_read_once(model, BEAMS):
        assert written(model) == expected
    # the prompt's own 20 positions stand before a decoder's; a prefix is in its cache
    read = 1 if name == "t5" else LENGTH + 20 * (method == "prompt")
    assert counts == [len(PROMPTS) * read, *[BEAMS * len(PROMPTS)] * (WRITTEN - 1)]


def test_a_model_without_a_cache_of_transformers_reads_every_copy() -> None:
    model = writer("gpt2")
    expected = written(model, use_cache=False)
    with tokens_read(model.get_input_embeddings()) as counts, prompts_read_once(model, BEAMS):
        assert written(model, use_cache=False) == expected
    assert counts[0] == BEAMS * len(PROMPTS) * LENGTH


def test_an_argument_that_is_not_known_to_have_a_row_a_copy_leaves_the_copies_in() -> None:
    model = writer("gpt2")
    plain = type(model).forward

    def forward(self: nn.Module, *, scale: Tensor, **kwargs: object) -> object:
        return plain(self, **kwargs)

    model.__class__ = type("Scaled", (type(model),), {"forward": forward})
    with tokens_read(model.get_input_embeddings()) as counts, prompts_read_once(model, BEAMS):
        written(model, scale=torch.ones(len(PROMPTS)))
    assert counts[0] == BEAMS * len(PROMPTS) * LENGTH


def test_the_model_is_as_before_also_after_an_error() -> None:
    model = small.language_model("gpt2")
    with pytest.raises(KeyError), prompts_read_once(model, BEAMS):
        raise KeyError
    assert not model._forward_pre_hooks and not model._forward_hooks
