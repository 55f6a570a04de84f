"""Tiny multimodal checkpoints, with the configuration classes and key names of the real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from dpft.models.source import EMBEDDED_MODEL

WIDTH = 16
TEXT = {
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
ROTARY = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": WIDTH,
    "patch_size": 14,
}
IMAGES = {"image_token_id": 6, "video_token_id": 7}
CLIP = {"model_type": "clip_vision_model", **VISION}


def _linear_attention(ids: dict[str, Any]) -> dict[str, Any]:
    return {
        **TEXT, **ids, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }  # fmt: skip


FAMILIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "gemma3": lambda ids: {
        "text_config": {**TEXT, **ids, **SLIDING, "head_dim": 8},
        "vision_config": VISION,
        "mm_tokens_per_image": 4,
    },
    "mistral3": lambda ids: {
        "text_config": {"model_type": "mistral", **TEXT, **ids, "head_dim": 8},
        "vision_config": {"model_type": "pixtral", **VISION, "head_dim": 8},
    },
    "llava": lambda ids: {
        "text_config": {"model_type": "llama", **TEXT, **ids},
        "vision_config": CLIP,
    },
    "smolvlm": lambda ids: {
        "text_config": {"model_type": "llama", **TEXT, **ids},
        "vision_config": VISION,
        "scale_factor": 2,
        "image_token_id": 6,
        "pad_token_id": ids["pad_token_id"],
    },
    "qwen2_5_vl": lambda ids: {
        "text_config": {**TEXT, **ids, "rope_parameters": ROTARY},
        "vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0]},
        **IMAGES,
    },
    "qwen3_vl": lambda ids: {
        "text_config": {**TEXT, **ids, "head_dim": 8, "rope_parameters": ROTARY},
        "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
        **IMAGES,
    },
    "qwen3_5": lambda ids: {
        "text_config": _linear_attention(ids),
        "vision_config": QWEN_VISION,
    },
    "internvl": lambda ids: {
        "text_config": {"model_type": "qwen2", **TEXT, **ids},
        "vision_config": {**VISION, "image_size": [28, 28], "patch_size": [14, 14]},
        "image_token_id": 6,
    },
    "lfm2_vl": lambda ids: {
        "text_config": {
            "model_type": "lfm2", **TEXT, **ids, "layer_types": ["conv", "full_attention"],
            "block_multiple_of": 8,
        },
        "vision_config": {
            "model_type": "siglip2_vision_model", "hidden_size": WIDTH, "intermediate_size": 32,
            "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14, "num_patches": 4,
        },
        "projector_hidden_size": WIDTH,
    },
    "qwen2_audio": lambda ids: {
        "text_config": {"model_type": "qwen2", **TEXT, **ids},
        "audio_config": {
            "model_type": "qwen2_audio_encoder", "d_model": WIDTH, "encoder_layers": 1,
            "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "num_mel_bins": 8,
        },
    },
    # The next ones cannot learn from texts only.
    "kosmos-2": lambda ids: {
        "text_config": {
            "embed_dim": WIDTH, "layers": 1, "ffn_dim": 32, "attention_heads": 2,
            "vocab_size": ids["vocab_size"],
        },
        "vision_config": VISION,
    },
    "blip-2": lambda ids: {
        "text_config": {
            "model_type": "opt", "hidden_size": WIDTH, "ffn_dim": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "word_embed_proj_dim": WIDTH,
            "vocab_size": ids["vocab_size"],
        },
        "vision_config": VISION,
        "qformer_config": {
            "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 32, "encoder_hidden_size": WIDTH,
        },
    },
    "mllama": lambda ids: {
        "text_config": {**TEXT, **ids, "cross_attention_layers": [1]},
        "vision_config": {
            "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_global_layers": 1, "attention_heads": 2, "vision_output_dim": 2 * WIDTH,
            "image_size": 28, "patch_size": 14, "intermediate_layers_indices": [0],
            "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
        },
    },
}  # fmt: skip
"""Sizes of a tiny checkpoint by model type, from the vocabulary size and special tokens."""


def tokenizer() -> PreTrainedTokenizerBase:
    """The bundled model's tokenizer."""
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    return found


def config(family: str) -> PretrainedConfig:
    """Return the configuration of a tiny model."""
    own = tokenizer()
    end = own.eos_token_id
    ids = {"vocab_size": len(own), "pad_token_id": end, "eos_token_id": end, "bos_token_id": end}
    return CONFIG_MAPPING[family](**FAMILIES[family](ids))


def model(family: str) -> PreTrainedModel:
    """Return a tiny model of the class that multimodal checkpoints are saved from."""
    name = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: PreTrainedModel = getattr(transformers, name)(config(family))
    return made


def save(family: str, folder: Path) -> Path:
    """Save a tiny model and its tokenizer; return the folder."""
    model(family).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
