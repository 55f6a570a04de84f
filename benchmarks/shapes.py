"""The shapes of models that benchmarks measure, by name; weights are random.

A name with ``_untied`` at its end is the same shape whose head has a weight of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

from dpft.models.batch_norm import replace_batch_norm

NO_TOKENS = {"bos_token_id": 0, "eos_token_id": 0}
NO_GPT2_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
QUERY_AND_VALUE = ("q_proj", "v_proj")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of model.

    Attributes:
        build: Makes it, on torch's default device.
        adapted: Last names of the dense layers that LoRA changes.
        classifies: Whether it tells a text's class; else its next tokens.
        has_biases: Whether BiTFiT has something to train.
        image_size: Height and width of the images whose class it tells; None: it reads text.
    """

    build: Callable[[], PreTrainedModel]
    adapted: tuple[str, ...]
    classifies: bool = False
    has_biases: bool = True
    image_size: int | None = None


def _gpt2(**sizes: int) -> Shape:
    def build() -> PreTrainedModel:
        return GPT2LMHeadModel(GPT2Config(**sizes, **NO_TOKENS, **NO_GPT2_DROPOUT))

    return Shape(build=build, adapted=("c_attn",))


def _roberta(**sizes: int) -> Shape:
    def build() -> PreTrainedModel:
        made = {"max_position_embeddings": 514, "type_vocab_size": 1, **NO_DROPOUT, **sizes}
        return RobertaForSequenceClassification(RobertaConfig(**made))

    return Shape(build=build, adapted=("query", "value"), classifies=True)


def _resnet(size: int, **sizes: Any) -> Shape:
    """Return a ResNet of basic blocks, with GroupNorm instead of BatchNorm."""

    def build() -> PreTrainedModel:
        model = ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes))
        replace_batch_norm(model)
        return model

    return Shape(build=build, adapted=(), classifies=True, image_size=size)


def _vit(size: int, **sizes: int) -> Shape:
    def build() -> PreTrainedModel:
        made = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **sizes}
        return ViTForImageClassification(ViTConfig(image_size=size, **made))

    return Shape(build=build, adapted=QUERY_AND_VALUE, classifies=True, image_size=size)


def llama_shape(**sizes: int) -> Shape:
    """Return a shape of Llama's form, untied, with a vocabulary of 32,000 unless it is given."""

    def build() -> PreTrainedModel:
        return LlamaForCausalLM(LlamaConfig(**sizes))

    return Shape(build=build, adapted=QUERY_AND_VALUE, has_biases=False)


SMALL_GPT2 = {"vocab_size": 8192, "n_embd": 256, "n_layer": 4, "n_head": 4}
TINY = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY_GPT2 = {"vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 2}
RESNET18 = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
TINY_RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
LLAMA_350M = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 2816,
}
"""374 million parameters: GPT-2 medium's width and depth in Llama's layers."""
LLAMA_1B = {
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
}
"""1.1 billion parameters: TinyLlama's (Zhang et al. 2024, arXiv 2401.02385)."""
THIN_LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 22,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
"""TinyLlama's layers so thin that kernels take almost no time: what the host does remains."""
THIN_GPT2 = {"n_embd": 64, "n_head": 4}
UNTIED = {"tie_word_embeddings": False}
SHAPES: Mapping[str, Shape] = {
    "gpt2": _gpt2(),
    "gpt2_untied": _gpt2(**UNTIED),
    "small_gpt2": _gpt2(**SMALL_GPT2),
    "small_gpt2_untied": _gpt2(**SMALL_GPT2, **UNTIED),
    "tiny_gpt2": _gpt2(**TINY_GPT2),
    "tiny_gpt2_untied": _gpt2(**TINY_GPT2, **UNTIED),
    "roberta": _roberta(),
    "tiny_roberta": _roberta(**TINY, intermediate_size=128),
    "resnet18": _resnet(224, **RESNET18),
    "tiny_resnet": _resnet(32, **TINY_RESNET),
    "vit_base": _vit(224),
    "llama_350m": llama_shape(**LLAMA_350M),
    "llama_1b": llama_shape(**LLAMA_1B),
    "thin_llama": llama_shape(**THIN_LLAMA),
    "thin_gpt2": _gpt2(**THIN_GPT2),
    "tiny_llama": llama_shape(**TINY, intermediate_size=128),
}


def untied(name: str) -> str:
    """Return the shape of a name without tied weights, which is itself where it has none."""
    return f"{name}_untied" if f"{name}_untied" in SHAPES else name
