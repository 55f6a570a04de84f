"""Tiny models of published families, with random weights, in the folder layout of the hub.

Each function writes what the repository in its ``like`` holds, with few layers and a small
vocabulary: config.json with the published keys and class, weights in the published precision and
under the published names, generation_config.json, and the family's own kind of tokenizer. It gets
an empty folder.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from tests.zoo import chat_templates
from tests.zoo.tokenizer_files import (
    byte_fallback_bpe,
    byte_level_bpe,
    sentencepiece_unigram,
    wordpiece,
    write_json,
    write_tokenizer,
    write_vocabulary,
)

CAUSAL, SEQ2SEQ, ENCODER, IMAGE = "causal", "seq2seq", "encoder", "image"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family and the layout in which it is published.

    Attributes:
        title: Name in the documentation.
        like: Repository of the hub whose layout the folder has.
        kind: Causal or seq2seq language model, encoder, or image classifier.
        write: Writes the folder.
        has_chat_template: Whether the tokenizer has a chat template.
        limits: By feature that is not supported, a pattern of the reason that dpft states.
    """

    title: str
    like: str
    kind: str
    write: Callable[[Path], None]
    has_chat_template: bool
    limits: Mapping[str, str]


FAMILIES: dict[str, Family] = {}


def family(
    title: str,
    like: str,
    kind: str = CAUSAL,
    *,
    chat: bool = False,
    limits: Mapping[str, str] | None = None,
) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register the function that writes a family's folder, under the function's name."""

    def register(write: Callable[[Path], None]) -> Callable[[Path], None]:
        FAMILIES[write.__name__] = Family(
            title=title,
            like=like,
            kind=kind,
            write=write,
            has_chat_template=chat,
            limits=limits or {},
        )
        return write

    return register


EXPERTS = {"train": "expert"}
LABEL_WORDS = {"classify": "label words"}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
BFLOAT16 = {"torch_dtype": "bfloat16"}


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    *,
    generation: Mapping[str, Any] | None = None,
    saved_class: str | None = None,
    rename: Callable[[str], str] = str,
    drop: Sequence[str] = (),
    extra: Mapping[str, Tensor] | None = None,
    shard_size: str = "1GB",
) -> None:
    """Write config.json, random weights and generation_config.json.

    Args:
        folder: Folder of the model.
        config: Content of config.json.
        generation: Content of generation_config.json; None if the family has none.
        saved_class: Class that has the weights, if it is not the one in ``architectures``.
        rename: Returns the published name of a weight, given the name in transformers.
        drop: Beginnings of the names of weights that the published checkpoint lacks.
        extra: Published weights that the class does not have.
        shard_size: Largest size of a file of weights.
    """
    write_json(folder / "config.json", config)
    read = AutoConfig.from_pretrained(folder)
    name = saved_class or config["architectures"][0]
    precision = getattr(torch, config.get("torch_dtype", config.get("dtype", "float32")))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model: PreTrainedModel = getattr(transformers, name)(read).to(precision)
    model.save_pretrained(folder, max_shard_size=shard_size)
    if rename is not str or drop or extra:
        (folder / "model.safetensors").unlink()
        state = {
            rename(key): value.contiguous()
            for key, value in model.state_dict().items()
            if not key.startswith(tuple(drop))
        }
        save_file({**state, **(extra or {})}, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", config)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if generation is not None:
        write_json(folder / "generation_config.json", generation)


def padded(tokenizer: Tokenizer, multiple: int = 64) -> int:
    """Return the vocabulary size of a model that has rows beyond its tokenizer's tokens."""
    return (tokenizer.get_vocab_size() // multiple + 1) * multiple


@family("Llama 3", "meta-llama/Llama-3.2-1B-Instruct", chat=True)
def llama3(folder: Path) -> None:
    """Several end-of-text ids, tied embeddings, no padding token, a template with a date."""
    begin, end = "<|begin_of_text|>", "<|eot_id|>"
    names = ("<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
             "<|end_header_id|>", "<|eom_id|>")  # fmt: skip
    tokenizer = byte_level_bpe(last=(begin, *names, end, "<|python_tag|>"), before=(begin,))
    write_tokenizer(
        folder, tokenizer, template=chat_templates.LLAMA_3, bos_token=begin, eos_token=end,
        clean_up_tokenization_spaces=True, model_max_length=131072,
        model_input_names=["input_ids", "attention_mask"],
        tokenizer_class="PreTrainedTokenizerFast",
    )  # fmt: skip
    ends = [tokenizer.token_to_id(name) for name in ("<|end_of_text|>", "<|eom_id|>", end)]
    ids = {"bos_token_id": tokenizer.token_to_id(begin), "eos_token_id": ends}
    config = GROUPED | ids | BFLOAT16 | {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "use_cache": True,
        "transformers_version": "4.45.0.dev0", "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    generation = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    write_model(folder, config, generation=ids | generation)


QWEN_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip


def _qwen_tokenizer(folder: Path, template: str, tokenizer_class: str, in_file: bool) -> Tokenizer:
    tokenizer = byte_level_bpe(last=QWEN_TOKENS, words=("<think>", "</think>"))
    write_tokenizer(
        folder, tokenizer, template=template, template_file=in_file, add_bos_token=False,
        add_prefix_space=False, bos_token=None, clean_up_tokenization_spaces=False,
        eos_token="<|im_end|>", errors="replace", model_max_length=131072,
        pad_token="<|endoftext|>", split_special_tokens=False, tokenizer_class=tokenizer_class,
        unk_token=None,
    )  # fmt: skip
    if not in_file:
        write_vocabulary(folder, tokenizer)
    return tokenizer


@family("Qwen2.5", "Qwen/Qwen2.5-0.5B-Instruct", chat=True)
def qwen2(folder: Path) -> None:
    """Biases of queries, keys and values; the template adds a system message."""
    tokenizer = _qwen_tokenizer(folder, chat_templates.QWEN_2, "Qwen2Tokenizer", False)
    text, end = (tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|im_end|>"))
    config = SIZES | BFLOAT16 | {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": text,
        "eos_token_id": end, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "max_window_layers": 2, "model_type": "qwen2",
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": True, "transformers_version": "4.43.1",
        "use_cache": True, "use_sliding_window": False, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    generation = {
        "bos_token_id": text, "do_sample": True, "eos_token_id": [end, text],
        "pad_token_id": text, "repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20,
        "top_p": 0.8,
    }  # fmt: skip
    write_model(folder, config, generation=generation)


@family("Qwen3", "Qwen/Qwen3-0.6B", chat=True)
def qwen3(folder: Path) -> None:
    """Weights in shards, no begin-of-text token, tags of thoughts in the template."""
    tokenizer = _qwen_tokenizer(folder, chat_templates.QWEN_3, "Qwen2Tokenizer", False)
    text, end = (tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|im_end|>"))
    config = GROUPED | BFLOAT16 | {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": text, "eos_token_id": end, "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": 40960, "max_window_layers": 2,
        "model_type": "qwen3", "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    generation = {
        "bos_token_id": text, "do_sample": True, "eos_token_id": [end, text],
        "pad_token_id": text, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    }  # fmt: skip
    write_model(folder, config, generation=generation, shard_size="40KB")


@family("Qwen3.5", "Qwen/Qwen3.5-0.8B", chat=True)
def qwen3_5(folder: Path) -> None:
    """Composite: sizes and ids in text_config, a vision tower, layers with linear attention."""
    tokenizer = _qwen_tokenizer(folder, chat_templates.QWEN_3_5, "Qwen2Tokenizer", True)
    ids = {name: tokenizer.token_to_id(name) for name in QWEN_TOKENS}
    text = GROUPED | {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
        "dtype": "bfloat16", "eos_token_id": ids["<|endoftext|>"], "full_attention_interval": 2,
        "hidden_act": "silu", "initializer_range": 0.02,
        "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_value_head_dim": 8, "max_position_embeddings": 262144, "mlp_only_layers": [],
        "model_type": "qwen3_5_text", "rms_norm_eps": 1e-06, "tie_word_embeddings": True,
        "use_cache": True, "vocab_size": padded(tokenizer), "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [1, 1, 0], "rope_type": "default",
            "rope_theta": 10000000, "partial_rotary_factor": 0.5,
        },
    }  # fmt: skip
    vision = {
        "deepstack_visual_indexes": [], "depth": 1, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 64,
        "model_type": "qwen3_5", "num_heads": 2, "num_position_embeddings": 16,
        "out_hidden_size": 32, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_end_token_id": ids["<|vision_end|>"], "text_config": text,
        "vision_start_token_id": ids["<|vision_start|>"], "vision_config": vision,
        "tie_word_embeddings": True, "transformers_version": "4.57.0.dev0",
        "dtype": "bfloat16",
    }  # fmt: skip
    write_model(folder, config)


def _gemma_tokenizer(folder: Path) -> Tokenizer:
    special = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    tokenizer = byte_fallback_bpe(
        first=(*special, "<start_of_turn>", "<end_of_turn>"),
        last=("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        before=("<bos>",),
    )
    write_tokenizer(
        folder, tokenizer, template=chat_templates.GEMMA_3, add_bos_token=True,
        add_eos_token=False, boi_token="<start_of_image>", bos_token="<bos>",
        clean_up_tokenization_spaces=False, eoi_token="<end_of_image>", eos_token="<eos>",
        image_token="<image_soft_token>", model_max_length=10**30, pad_token="<pad>",
        sp_model_kwargs=None, spaces_between_special_tokens=False,
        tokenizer_class="GemmaTokenizer", unk_token="<unk>", use_default_system_prompt=False,
    )  # fmt: skip
    return tokenizer


def _gemma_ends(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.token_to_id(name) for name in ("<eos>", "<end_of_turn>")]


@family("Gemma 3, text only", "google/gemma-3-1b-it", chat=True)
def gemma3_text(folder: Path) -> None:
    """Its tokenizer has one token, that of images, for which the model has no row."""
    tokenizer = _gemma_tokenizer(folder)
    ends = _gemma_ends(tokenizer)
    config = GROUPED | BFLOAT16 | {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2,
        "cache_implementation": "hybrid", "eos_token_id": ends, "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "pad_token_id": 0,
        "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 16,
        "sliding_window_pattern": 2, "transformers_version": "4.50.0.dev0", "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size() - 1,
    }  # fmt: skip
    generation = {
        "bos_token_id": 2, "cache_implementation": "hybrid", "do_sample": True,
        "eos_token_id": ends, "pad_token_id": 0, "top_k": 64, "top_p": 0.95,
    }  # fmt: skip
    write_model(folder, config, generation=generation)


@family("Gemma 3, multimodal", "google/gemma-3-4b-it", chat=True)
def gemma3(folder: Path) -> None:
    """Composite: sizes in text_config, no token ids of the text model, a vision tower."""
    tokenizer = _gemma_tokenizer(folder)
    ends = _gemma_ends(tokenizer)
    config = BFLOAT16 | {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": tokenizer.token_to_id("<start_of_image>"),
        "eoi_token_index": tokenizer.token_to_id("<end_of_image>"), "eos_token_id": ends,
        "image_token_index": tokenizer.token_to_id("<image_soft_token>"),
        "initializer_range": 0.02, "mm_tokens_per_image": 4, "model_type": "gemma3",
        "text_config": GROUPED | {
            "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 16, "sliding_window_pattern": 2, "vocab_size": padded(tokenizer),
        },
        "transformers_version": "4.50.0.dev0",
        "vision_config": SIZES | {
            "image_size": 28, "model_type": "siglip_vision_model", "patch_size": 14,
            "vision_use_head": False,
        },
    }  # fmt: skip
    generation = {
        "bos_token_id": 2, "cache_implementation": "hybrid", "do_sample": True,
        "eos_token_id": ends, "pad_token_id": 0, "top_k": 64, "top_p": 0.95,
    }  # fmt: skip
    write_model(folder, config, generation=generation)
    write_json(
        folder / "preprocessor_config.json",
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 28, "width": 28}},
    )
    write_json(
        folder / "processor_config.json",
        {"image_seq_length": 4, "processor_class": "Gemma3Processor"},
    )


def _gemma3n_text(tokenizer: Tokenizer) -> dict[str, Any]:
    return GROUPED | {
        "activation_sparsity_pattern": [0.95, 0.0], "altup_active_idx": 0,
        "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_num_inputs": 2,
        "attention_bias": False, "attention_dropout": 0.0, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 8,
        "initializer_range": 0.02, "intermediate_size": [64, 64], "laurel_rank": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 32768, "model_type": "gemma3n_text",
        "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 16, "use_cache": True,
        "vocab_size": padded(tokenizer), "vocab_size_per_layer_input": padded(tokenizer),
    }  # fmt: skip


@family("Gemma 3n, text only", "google/gemma-3n-E2B-it, its language model", chat=True)
def gemma3n_text(folder: Path) -> None:
    """Embeddings for each layer, several streams of residuals, sparse activations."""
    tokenizer = _gemma_tokenizer(folder)
    ids = {"bos_token_id": 2, "eos_token_id": _gemma_ends(tokenizer), "pad_token_id": 0}
    config = _gemma3n_text(tokenizer) | ids | BFLOAT16 | {
        "architectures": ["Gemma3nForCausalLM"], "tie_word_embeddings": True,
        "transformers_version": "4.53.0.dev0",
    }  # fmt: skip
    write_model(folder, config, generation=ids | {"do_sample": True, "top_k": 64, "top_p": 0.95})


def _mistral_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = byte_fallback_bpe(first=("<unk>", "<s>", "</s>"), before=("<s>",))
    write_tokenizer(
        folder, tokenizer, template=chat_templates.MISTRAL, add_bos_token=True,
        add_eos_token=False, bos_token="<s>", clean_up_tokenization_spaces=False,
        eos_token="</s>", legacy=False, model_max_length=10**30, pad_token=None,
        sp_model_kwargs={}, spaces_between_special_tokens=False,
        tokenizer_class="LlamaTokenizer", unk_token="<unk>", use_default_system_prompt=False,
    )  # fmt: skip
    return tokenizer


@family("Mistral", "mistralai/Mistral-7B-Instruct-v0.3", chat=True)
def mistral(folder: Path) -> None:
    """No padding token; the template raises an error if roles do not alternate."""
    tokenizer = _mistral_tokenizer(folder)
    config = SIZES | BFLOAT16 | {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "transformers_version": "4.42.0.dev0", "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    write_model(folder, config, generation={"bos_token_id": 1, "eos_token_id": 2})


@family("Mistral 3", "mistralai/Mistral-Small-3.1-24B-Instruct-2503", chat=True)
def mistral3(folder: Path) -> None:
    """Composite: a Mistral and a Pixtral vision tower; the template inserts the date."""
    special = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "<pad>", "[SYSTEM_PROMPT]",
               "[/SYSTEM_PROMPT]")  # fmt: skip
    tokenizer = byte_level_bpe(first=special, before=("<s>",))
    write_tokenizer(
        folder, tokenizer, template=chat_templates.MISTRAL_3, template_file=True,
        bos_token="<s>", clean_up_tokenization_spaces=False, eos_token="</s>",
        model_max_length=10**30, pad_token="<pad>", tokenizer_class="LlamaTokenizerFast",
        unk_token="<unk>", use_default_system_prompt=False,
    )  # fmt: skip
    config = BFLOAT16 | {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": tokenizer.token_to_id("[IMG]"), "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": GROUPED | {
            "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
            "max_position_embeddings": 131072, "model_type": "mistral", "rms_norm_eps": 1e-05,
            "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True,
            "vocab_size": padded(tokenizer),
        },
        "transformers_version": "4.50.0.dev0",
        "vision_config": SIZES | {
            "attention_dropout": 0.0, "head_dim": 8, "hidden_act": "gelu", "image_size": 28,
            "initializer_range": 0.02, "model_type": "pixtral", "num_channels": 3,
            "patch_size": 14, "rope_theta": 10000.0,
        },
        "vision_feature_layer": -1,
    }  # fmt: skip
    write_model(folder, config, generation={"bos_token_id": 1, "eos_token_id": 2})


@family("Phi-2", "microsoft/phi-2")
def phi2(folder: Path) -> None:
    """Half precision, partial rotations, no padding token."""
    tokenizer = byte_level_bpe(last=("<|endoftext|>",))
    write_tokenizer(
        folder, tokenizer, add_prefix_space=False, bos_token="<|endoftext|>",
        clean_up_tokenization_spaces=True, eos_token="<|endoftext|>", model_max_length=2048,
        tokenizer_class="CodeGenTokenizer", unk_token="<|endoftext|>",
    )  # fmt: skip
    write_vocabulary(folder, tokenizer)
    end = tokenizer.token_to_id("<|endoftext|>")
    ids = {"bos_token_id": end, "eos_token_id": end}
    config = SIZES | ids | {
        "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "embd_pdrop": 0.0,
        "hidden_act": "gelu_new", "initializer_range": 0.02, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "phi", "num_key_value_heads": 4,
        "partial_rotary_factor": 0.5, "qk_layernorm": False, "resid_pdrop": 0.1,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.37.0", "use_cache": True,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, generation=ids)


def _write_phi3(folder: Path, positions: Mapping[str, Any]) -> None:
    last = ("<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|end|>", "<|system|>",
            "<|user|>")  # fmt: skip
    tokenizer = byte_fallback_bpe(first=("<unk>", "<s>", "</s>"), last=last)
    write_tokenizer(
        folder, tokenizer, template=chat_templates.PHI_3, add_bos_token=False,
        add_eos_token=False, bos_token="<s>", clean_up_tokenization_spaces=False,
        eos_token="<|endoftext|>", legacy=False, model_max_length=131072,
        pad_token="<|endoftext|>", padding_side="left", sp_model_kwargs={},
        tokenizer_class="LlamaTokenizer", unk_token="<unk>", use_default_system_prompt=False,
    )  # fmt: skip
    end, turn, user = (tokenizer.token_to_id(last[n]) for n in (0, 3, 1))
    config = GROUPED | BFLOAT16 | {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
                     "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": end, "hidden_act": "silu",
        "initializer_range": 0.02, "model_type": "phi3",
        "original_max_position_embeddings": 4096, "pad_token_id": end, "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "transformers_version": "4.43.3", "use_cache": True, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    ids = {"bos_token_id": 1, "eos_token_id": [turn, user, end], "pad_token_id": end}
    write_model(folder, config | positions, generation=ids)


@family("Phi-3", "microsoft/Phi-3-mini-4k-instruct", chat=True)
def phi3(folder: Path) -> None:
    """Fused projections, placeholders in the vocabulary, code of its own that is not run."""
    positions = {"max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047}
    _write_phi3(folder, positions)


@family(
    "Phi-3, long context",
    "microsoft/Phi-3.5-mini-instruct",
    chat=True,
)
def phi3_long(folder: Path) -> None:
    """Rotary positions that transformers scales by the longest example, from 4,097 tokens on."""
    factors = {"long_factor": [1.0] * 4, "short_factor": [1.0] * 4, "type": "longrope"}
    positions = {
        "max_position_embeddings": 131072, "rope_scaling": factors, "sliding_window": 262144,
    }  # fmt: skip
    _write_phi3(folder, positions)


@family("Phi-4", "microsoft/phi-4", chat=True)
def phi4(folder: Path) -> None:
    """Tokenizer of GPT-2's kind, with vocab.json and merges.txt."""
    last = ("<|endoftext|>", "<|dummy_0|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>")
    tokenizer = byte_level_bpe(last=last)
    write_tokenizer(
        folder, tokenizer, template=chat_templates.PHI_4, add_prefix_space=False,
        bos_token="<|endoftext|>", clean_up_tokenization_spaces=False, eos_token="<|im_end|>",
        model_max_length=16384, pad_token="<|dummy_0|>", padding_side="left",
        tokenizer_class="GPT2Tokenizer", unk_token="<|endoftext|>",
    )  # fmt: skip
    write_vocabulary(folder, tokenizer)
    text, pad, end = (tokenizer.token_to_id(last[n]) for n in (0, 1, 3))
    ids = {"bos_token_id": text, "eos_token_id": end, "pad_token_id": pad}
    config = GROUPED | ids | BFLOAT16 | {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "embd_pdrop": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 16384, "model_type": "phi3",
        "original_max_position_embeddings": 16384, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 250000, "sliding_window": None,
        "tie_word_embeddings": False, "transformers_version": "4.47.0", "use_cache": True,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, generation=ids)


@family("SmolLM3", "HuggingFaceTB/SmolLM3-3B", chat=True)
def smollm3(folder: Path) -> None:
    """Layers without rotary positions; the template inserts the date."""
    last = ("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>")
    tokenizer = byte_level_bpe(last=last, words=("<think>", "</think>"))
    write_tokenizer(
        folder, tokenizer, template=chat_templates.SMOLLM_3, template_file=True, bos_token=None,
        clean_up_tokenization_spaces=True, eos_token="<|im_end|>", fast=False,
        model_max_length=131072, pad_token="<|im_end|>",
        tokenizer_class="PreTrainedTokenizerFast",
    )  # fmt: skip
    begin, end = (tokenizer.token_to_id(last[n]) for n in (0, 3))
    config = GROUPED | BFLOAT16 | {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": begin, "eos_token_id": end,
        "hidden_act": "silu", "initializer_range": 0.02,
        "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 65536,
        "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 0], "pad_token_id": end,
        "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True,
        "transformers_version": "4.54.0.dev0", "use_cache": False, "use_sliding_window": False,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    generation = {"bos_token_id": begin, "do_sample": True, "eos_token_id": end,
                  "temperature": 0.6, "top_p": 0.95}  # fmt: skip
    write_model(folder, config, generation=generation)


@family("LFM2", "LiquidAI/LFM2-350M", chat=True)
def lfm2(folder: Path) -> None:
    """Convolutions and attention in turns; sizes under names of its own."""
    special = ("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = byte_level_bpe(first=special, before=("<|startoftext|>",))
    write_tokenizer(
        folder, tokenizer, template=chat_templates.LFM_2, template_file=True,
        add_bos_token=True, add_eos_token=False, bos_token="<|startoftext|>",
        clean_up_tokenization_spaces=True, eos_token="<|im_end|>", legacy=False,
        model_max_length=10**30, pad_token="<|pad|>", tokenizer_class="PreTrainedTokenizerFast",
        use_default_system_prompt=False, use_fast=True,
    )  # fmt: skip
    ids = {"bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 0}
    config = ids | BFLOAT16 | {
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 32,
        "block_ff_dim": 96, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 8,
        "block_norm_eps": 1e-05, "block_use_swiglu": True, "conv_L_cache": 3,
        "conv_bias": False, "conv_dim": 32, "conv_dim_out": 32, "full_attn_idxs": [1],
        "hidden_size": 32, "initializer_range": 0.02, "max_position_embeddings": 128000,
        "model_type": "lfm2", "norm_eps": 1e-05, "num_attention_heads": 4, "num_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rope_theta": 1000000.0,
        "theta": 1000000.0, "tie_embedding": True, "transformers_version": "4.54.0.dev0",
        "use_cache": True, "use_pos_enc": True, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, generation=ids)


@family("Falcon", "tiiuae/falcon-7b")
def falcon(folder: Path) -> None:
    """One head of keys and values for all queries; attention beside the MLP."""
    last = (">>TITLE<<", ">>ABSTRACT<<", "<|endoftext|>")
    tokenizer = byte_level_bpe(last=last)
    write_tokenizer(
        folder, tokenizer, add_prefix_space=False, eos_token="<|endoftext|>",
        model_input_names=["input_ids", "attention_mask"], model_max_length=2048,
        tokenizer_class="PreTrainedTokenizerFast",
    )  # fmt: skip
    end = tokenizer.token_to_id("<|endoftext|>")
    ids = {"bos_token_id": end, "eos_token_id": end}
    config = ids | BFLOAT16 | {
        "alibi": False, "apply_residual_connection_post_layernorm": False,
        "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": False,
        "hidden_dropout": 0.0, "hidden_size": 32, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True,
        "new_decoder_architecture": False, "num_attention_heads": 4, "num_hidden_layers": 2,
        "parallel_attn": True, "transformers_version": "4.27.4", "use_cache": True,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, generation=ids)


@family("Falcon-H1", "tiiuae/Falcon-H1-0.5B-Instruct", chat=True)
def falcon_h1(folder: Path) -> None:
    """Attention and a state space in each layer, multipliers at every projection."""
    special = ("<|pad|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|end_of_text|>")
    tokenizer = byte_level_bpe(first=special)
    write_tokenizer(
        folder, tokenizer, template=chat_templates.FALCON_H1, bos_token="<|begin_of_text|>",
        clean_up_tokenization_spaces=True, eos_token="<|end_of_text|>",
        model_max_length=10**30, pad_token="<|pad|>", tokenizer_class="PreTrainedTokenizerFast",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    config = GROUPED | BFLOAT16 | {
        "architectures": ["FalconH1ForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 0.9375, "attn_layer_indices": None, "bos_token_id": 1,
        "embedding_multiplier": 5.656854249492381, "eos_token_id": 4, "hidden_act": "silu",
        "initializer_range": 0.02, "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625,
        "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 8,
        "mamba_d_ssm": 48, "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1,
        "mamba_n_heads": 6, "mamba_norm_before_gate": False, "mamba_proj_bias": False,
        "mamba_rms_norm": False, "mamba_use_mlp": True, "max_position_embeddings": 16384,
        "mlp_bias": False, "mlp_expansion_factor": 8,
        "mlp_multipliers": [0.8838834764831844, 0.5859375], "model_type": "falcon_h1",
        "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": False,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 100000000000.0,
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5,
                            0.3535533905932738],
        "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": False,
        "transformers_version": "4.52.0", "use_cache": True, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    ids = {"bos_token_id": 1, "eos_token_id": [4, 3], "pad_token_id": 0}
    write_model(folder, config, generation=ids)


def _neox_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = byte_level_bpe(first=("<|endoftext|>", "<|padding|>"))
    write_tokenizer(
        folder, tokenizer, add_prefix_space=False, bos_token="<|endoftext|>",
        eos_token="<|endoftext|>", model_max_length=10**30,
        tokenizer_class="GPTNeoXTokenizer", unk_token="<|endoftext|>",
    )  # fmt: skip
    return tokenizer


MAMBA_IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


@family("Mamba", "state-spaces/mamba-130m-hf")
def mamba(folder: Path) -> None:
    """State spaces only; no padding token, and the end-of-text id is 0."""
    tokenizer = _neox_tokenizer(folder)
    config = MAMBA_IDS | {
        "architectures": ["MambaForCausalLM"], "conv_kernel": 4, "d_inner": 64, "d_model": 32,
        "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "hidden_size": 32,
        "initializer_range": 0.1, "intermediate_size": 64, "layer_norm_epsilon": 1e-05,
        "model_type": "mamba", "n_layer": 2, "num_hidden_layers": 2,
        "pad_vocab_size_multiple": 8, "rescale_prenorm_residual": False,
        "residual_in_fp32": True, "rms_norm": True, "ssm_cfg": {}, "state_size": 8,
        "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1,
        "time_step_min": 0.001, "time_step_rank": 4, "time_step_scale": 1.0,
        "torch_dtype": "float32", "transformers_version": "4.39.0.dev0", "use_bias": False,
        "use_cache": True, "use_conv_bias": True, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, generation=MAMBA_IDS)


@family("Mamba-2", "AntonV/mamba2-130m-hf")
def mamba2(folder: Path) -> None:
    """State spaces with heads, in chunks."""
    tokenizer = _neox_tokenizer(folder)
    config = MAMBA_IDS | {
        "architectures": ["Mamba2ForCausalLM"], "chunk_size": 16, "conv_kernel": 4, "expand": 2,
        "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.1,
        "layer_norm_epsilon": 1e-05, "model_type": "mamba2", "n_groups": 1,
        "norm_before_gate": True, "num_heads": 8, "num_hidden_layers": 2,
        "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True,
        "state_size": 8, "tie_word_embeddings": True, "time_step_floor": 0.0001,
        "time_step_limit": [0.0, 1e30], "time_step_max": 0.1, "time_step_min": 0.001,
        "time_step_rank": 2, "torch_dtype": "float32", "transformers_version": "4.44.0.dev0",
        "use_bias": False, "use_cache": True, "use_conv_bias": True,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, generation=MAMBA_IDS)


@family("GPT-OSS", "openai/gpt-oss-20b, in bfloat16", chat=True, limits=EXPERTS)
def gpt_oss(folder: Path) -> None:
    """A mixture of experts."""
    last = ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>",
            "<|end|>", "<|message|>", "<|call|>")  # fmt: skip
    tokenizer = byte_level_bpe(last=last)
    write_tokenizer(
        folder, tokenizer, template=chat_templates.HARMONY, template_file=True,
        bos_token="<|startoftext|>", clean_up_tokenization_spaces=False,
        eos_token="<|return|>", model_max_length=10**30, pad_token="<|endoftext|>",
        tokenizer_class="PreTrainedTokenizerFast",
    )  # fmt: skip
    begin, pad, end, call = (tokenizer.token_to_id(last[n]) for n in (0, 1, 2, 7))
    config = GROUPED | BFLOAT16 | {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": end, "experts_per_token": 2, "hidden_act": "silu",
        "initial_context_length": 4096, "initializer_range": 0.02,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_experts_per_tok": 2,
        "num_local_experts": 4, "output_router_logits": False, "pad_token_id": pad,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False,
        },
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 16,
        "swiglu_limit": 7.0, "tie_word_embeddings": False, "transformers_version": "4.55.0",
        "use_cache": True, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    generation = {"bos_token_id": begin, "do_sample": True, "eos_token_id": [end, pad, call],
                  "pad_token_id": pad}  # fmt: skip
    write_model(folder, config, generation=generation)


@family("Mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1", chat=True, limits=EXPERTS)
def mixtral(folder: Path) -> None:
    """A mixture of experts."""
    tokenizer = _mistral_tokenizer(folder)
    config = GROUPED | BFLOAT16 | {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "model_type": "mixtral", "num_experts_per_tok": 2,
        "num_local_experts": 4, "output_router_logits": False, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
        "tie_word_embeddings": False, "transformers_version": "4.36.0.dev0", "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    write_model(folder, config, generation={"bos_token_id": 1, "eos_token_id": 2})


@family("GPT-2", "openai-community/gpt2")
def gpt2(folder: Path) -> None:
    """Weights named without the prefix ``transformer.``; no padding token."""
    tokenizer = byte_level_bpe(last=("<|endoftext|>",))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vocabulary(folder, tokenizer)
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1024})
    end = tokenizer.token_to_id("<|endoftext|>")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    write_json(folder / "vocab.json", vocabulary | {"<|endoftext|>": end})
    config = {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "bos_token_id": end, "embd_pdrop": 0.1, "eos_token_id": end,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 1024,
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    ids = {"bos_token_id": end, "eos_token_id": end}
    write_model(folder, config, saved_class="GPT2Model", generation=ids)


@family("OPT", "facebook/opt-125m")
def opt(folder: Path) -> None:
    """Half precision, learned positions, vocab.json and merges.txt without tokenizer.json."""
    tokenizer = byte_level_bpe(first=("<s>", "<pad>", "</s>", "<unk>"))
    write_tokenizer(
        folder, None, add_bos_token=True, add_prefix_space=False, bos_token="</s>",
        eos_token="</s>", errors="replace", pad_token="<pad>", tokenizer_class="GPT2Tokenizer",
        unk_token="</s>",
    )  # fmt: skip
    write_vocabulary(folder, tokenizer)
    ids = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    config = ids | {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0,
        "activation_function": "relu", "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0, "do_layer_norm_before": True, "dropout": 0.1, "ffn_dim": 64,
        "hidden_size": 32, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
        "model_type": "opt", "num_attention_heads": 4, "num_hidden_layers": 2, "prefix": "</s>",
        "torch_dtype": "float16", "transformers_version": "4.21.0.dev0", "use_cache": True,
        "vocab_size": padded(tokenizer), "word_embed_proj_dim": 32,
    }  # fmt: skip
    write_model(folder, config, generation=ids)


@family("GPT-NeoX", "EleutherAI/pythia-70m")
def gpt_neox(folder: Path) -> None:
    """Half precision, no padding token, an output layer of its own."""
    tokenizer = _neox_tokenizer(folder)
    config = SIZES | {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "rotary_emb_base": 10000,
        "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True,
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config)


@family("BLOOM", "bigscience/bloom-560m")
def bloom(folder: Path) -> None:
    """Weights named without the prefix ``transformer.``; positions by ALiBi."""
    tokenizer = byte_level_bpe(first=("<unk>", "<s>", "</s>", "<pad>"))
    write_tokenizer(
        folder, tokenizer, add_prefix_space=False, bos_token="<s>", eos_token="</s>",
        pad_token="<pad>", tokenizer_class="BloomTokenizerFast", unk_token="<unk>",
    )  # fmt: skip
    config = {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_dropout": 0.0, "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 32, "n_inner": None,
        "n_layer": 2, "num_attention_heads": 4, "offset_alibi": 100, "pad_token_id": 3,
        "pretraining_tp": 1, "skip_bias_add": True, "skip_bias_add_qkv": False,
        "slow_but_exact": False, "torch_dtype": "float16", "transformers_version": "4.20.0",
        "unk_token_id": 0, "use_cache": True, "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config, saved_class="BloomModel")


@family("T5", "google-t5/t5-small", SEQ2SEQ, limits=LABEL_WORDS)
def t5(folder: Path) -> None:
    """A SentencePiece model beside tokenizer.json, with 100 sentinels."""
    model = sentencepiece_unigram(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    sentinels = [f"<extra_id_{number}>" for number in range(100)]
    write_tokenizer(
        folder, None, additional_special_tokens=sentinels, clean_up_tokenization_spaces=True,
        eos_token="</s>", extra_ids=100, model_max_length=512, pad_token="<pad>",
        tokenizer_class="T5Tokenizer", unk_token="<unk>",
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 64, "d_kv": 8, "d_model": 32,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
        "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06,
        "model_type": "t5", "n_positions": 512, "num_heads": 4, "num_layers": 2,
        "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
        "task_specific_params": {
            "summarization": {"early_stopping": True, "max_length": 200, "num_beams": 4},
        },
        "vocab_size": padded(tokenizer.backend_tokenizer),
    }  # fmt: skip
    ids = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    write_model(folder, config, generation=ids)


@family("mT5", "google/mt5-small", SEQ2SEQ, limits=LABEL_WORDS)
def mt5(folder: Path) -> None:
    """Only a SentencePiece model as tokenizer; gated layers and an output layer of its own."""
    model = sentencepiece_unigram(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    write_tokenizer(
        folder, None, additional_special_tokens=None, eos_token="</s>", extra_ids=0,
        pad_token="<pad>", sp_model_kwargs={}, tokenizer_class="T5Tokenizer", unk_token="<unk>",
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    config = {
        "architectures": ["MT5ForConditionalGeneration"], "d_ff": 64, "d_kv": 8, "d_model": 32,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06, "model_type": "mt5", "num_decoder_layers": 2,
        "num_heads": 4, "num_layers": 2, "pad_token_id": 0,
        "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
        "tie_word_embeddings": False, "tokenizer_class": "T5Tokenizer",
        "transformers_version": "4.10.0.dev0", "use_cache": True,
        "vocab_size": padded(tokenizer.backend_tokenizer, multiple=8),
    }  # fmt: skip
    write_model(folder, config)


def _roberta_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = byte_level_bpe(
        first=("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",), before=("<s>",), after=("</s>",)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vocabulary(folder, tokenizer)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    write_json(folder / "vocab.json", vocabulary | {"<mask>": tokenizer.token_to_id("<mask>")})
    return tokenizer


@family("BART", "facebook/bart-base", SEQ2SEQ, limits=LABEL_WORDS)
def bart(folder: Path) -> None:
    """Saved from the bare model: the output layer is the embedding; rules for beams in config."""
    tokenizer = _roberta_tokenizer(folder)
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1024})
    config = {
        "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False,
        "add_final_layer_norm": False, "architectures": ["BartModel"],
        "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.1,
        "classifier_dropout": 0.0, "d_model": 32, "decoder_attention_heads": 4,
        "decoder_ffn_dim": 64, "decoder_layerdrop": 0.0, "decoder_layers": 2,
        "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": True,
        "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "encoder_layerdrop": 0.0,
        "encoder_layers": 2, "eos_token_id": 2, "forced_bos_token_id": 0,
        "forced_eos_token_id": 2, "gradient_checkpointing": False,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02,
        "is_encoder_decoder": True, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
        "max_position_embeddings": 1024, "model_type": "bart", "no_repeat_ngram_size": 3,
        "normalize_before": False, "normalize_embedding": True, "num_beams": 4,
        "num_hidden_layers": 2, "pad_token_id": 1, "scale_embedding": False,
        "transformers_version": "4.12.0.dev0", "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    write_model(folder, config)


def _bert_tokenizer(folder: Path, **settings: Any) -> Tokenizer:
    tokenizer = wordpiece()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vocabulary(folder, tokenizer)
    write_json(folder / "tokenizer_config.json", settings)
    return tokenizer


@family("BERT", "google-bert/bert-base-uncased", ENCODER)
def bert(folder: Path) -> None:
    """Normalizations named gamma and beta, and a head of next sentences that is not used."""
    tokenizer = _bert_tokenizer(folder, do_lower_case=True, model_max_length=512)
    config = SIZES | {
        "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "bert", "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip

    def rename(name: str) -> str:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return old.replace("LayerNorm.bias", "LayerNorm.beta")

    write_model(
        folder, config, saved_class="BertForPreTraining", rename=rename,
        drop=("cls.predictions.decoder.",),
    )  # fmt: skip


@family("RoBERTa", "FacebookAI/roberta-base", ENCODER)
def roberta(folder: Path) -> None:
    """Positions counted from the padding token's id; no pooler in the checkpoint."""
    tokenizer = _roberta_tokenizer(folder)
    write_json(folder / "tokenizer_config.json", {"model_max_length": 512})
    config = SIZES | {
        "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    write_model(folder, config)


@family("ModernBERT", "answerdotai/ModernBERT-base", ENCODER)
def modernbert(folder: Path) -> None:
    """Layers with global and with local attention; no biases; a byte-level tokenizer."""
    last = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    tokenizer = byte_level_bpe(last=last, before=("[CLS]",), after=("[SEP]",))
    write_tokenizer(
        folder, tokenizer, clean_up_tokenization_spaces=True, cls_token="[CLS]",
        mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
        model_max_length=8192, pad_token="[PAD]", sep_token="[SEP]",
        tokenizer_class="PreTrainedTokenizerFast", unk_token="[UNK]",
    )  # fmt: skip
    cls, sep, pad = (tokenizer.token_to_id(last[n]) for n in (1, 2, 3))
    config = SIZES | {
        "architectures": ["ModernBertForMaskedLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": cls, "classifier_activation": "gelu",
        "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
        "cls_token_id": cls, "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0, "eos_token_id": sep, "global_attn_every_n_layers": 2,
        "global_rope_theta": 160000.0, "gradient_checkpointing": False,
        "hidden_activation": "gelu", "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02, "layer_norm_eps": 1e-05, "local_attention": 16,
        "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
        "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05,
        "pad_token_id": pad, "position_embedding_type": "absolute", "reference_compile": None,
        "sep_token_id": sep, "sparse_pred_ignore_index": -100, "sparse_prediction": False,
        "torch_dtype": "float32", "transformers_version": "4.47.0.dev0",
        "vocab_size": padded(tokenizer),
    }  # fmt: skip
    write_model(folder, config)


@family("DeBERTa", "microsoft/deberta-v3-small", ENCODER)
def deberta(folder: Path) -> None:
    """Only a SentencePiece model as tokenizer; no architectures in config.json."""
    model = sentencepiece_unigram(
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]",
        eos_piece="[SEP]", unk_piece="[UNK]",
    )  # fmt: skip
    (folder / "spm.model").write_bytes(model)
    write_json(folder / "tokenizer_config.json", {"do_lower_case": False, "vocab_type": "spm"})
    config = SIZES | {
        "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02, "layer_norm_eps": 1e-07, "max_position_embeddings": 512,
        "max_relative_positions": -1, "model_type": "deberta-v2",
        "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "position_biased_input": False,
        "position_buckets": 256, "relative_attention": True, "share_att_key": True,
        "type_vocab_size": 0, "vocab_size": 128,
    }  # fmt: skip
    write_model(
        folder, config, saved_class="DebertaV2Model", rename=lambda name: f"deberta.{name}",
        extra={"lm_predictions.lm_head.bias": torch.zeros(128)},
    )  # fmt: skip


@family("ELECTRA", "google/electra-small-discriminator", ENCODER)
def electra(folder: Path) -> None:
    """A discriminator, with narrow embeddings."""
    tokenizer = _bert_tokenizer(folder, do_lower_case=True, model_max_length=512)
    config = SIZES | {
        "architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.1,
        "embedding_size": 16, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "electra", "summary_activation": "gelu", "summary_last_dropout": 0.1,
        "summary_type": "first", "summary_use_proj": True, "type_vocab_size": 2,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    write_model(folder, config)


@family("ViT", "google/vit-base-patch16-224", IMAGE)
def vit(folder: Path) -> None:
    """An image classifier with a head of other classes."""
    names = ["tench", "goldfish", "great white shark"]
    config = SIZES | {
        "architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "image_size": 16, "initializer_range": 0.02,
        "label2id": {name: str(number) for number, name in enumerate(names)},
        "layer_norm_eps": 1e-12, "model_type": "vit", "num_channels": 3, "patch_size": 4,
        "qkv_bias": True, "transformers_version": "4.13.0.dev0",
    }  # fmt: skip
    write_model(folder, config)
    settings = {
        "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "ViTImageProcessor",
        "image_std": [0.5, 0.5, 0.5], "resample": 2, "rescale_factor": 1 / 255,
        "size": {"height": 16, "width": 16},
    }  # fmt: skip
    write_json(folder / "preprocessor_config.json", settings)
