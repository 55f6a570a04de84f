"""Small random models of every architecture that the clipper must be exact for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

from tests.privacy.clipping.architectures import batches
from tests.privacy.clipping.architectures.batches import CLASSES, SIDE, VOCABULARY, Kind

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": SIDE,
    "patch_size": 8,
}
GROUPED = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
SMALL = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
IDS = {key: TEXT[key] for key in SMALL}
GPT = IDS | {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}


@dataclass(frozen=True)
class Case:
    """One architecture with one head.

    Attributes:
        config: Name of its configuration class.
        auto: Name of the class that builds the model from it.
        kind: How its losses are computed.
        options: Values of the configuration.
        dropout: The configuration's dropout rates, set to zero or to something.
        attention: Implementations that it has.
        adapt: What to change in the model.
        alone: Whether an example's loss is the same without its padding.
    """

    config: str
    auto: str
    kind: Kind
    options: dict[str, Any]
    dropout: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    attention: tuple[str, ...] = ("eager", "sdpa")
    adapt: Callable[[nn.Module], None] = lambda model: None
    alone: bool = True

    def build(
        self, *, dtype=torch.float32, attention: str | None = None, dropout: float = 0.0
    ) -> nn.Module:
        """Build the model with weights far from symmetric."""
        torch.manual_seed(0)
        config = getattr(hf, self.config)(**self.options)
        for name in self.dropout:
            setattr(config, name, dropout)
        config._attn_implementation = attention or self.attention[-1]
        build = getattr(hf, self.auto)
        automatic = self.auto.startswith("Auto")
        model = build.from_config(config) if automatic else build._from_config(config)
        self.adapt(model)
        model = model.to(dtype).train(dropout > 0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.requires_grad = True
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return model


CAUSAL, MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
CLASS, SEQ2SEQ = "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"
IMAGES = "AutoModelForImageClassification"
ATTENTION = ("attention_dropout",)
LABELS = {"num_labels": CLASSES}


def _causal(
    config: str,
    options: dict[str, Any],
    dropout=ATTENTION,
    attention=("eager", "sdpa"),
    **extra: Any,
) -> Case:
    return Case(config, CAUSAL, batches.causal, options | extra, dropout, attention)


DECODERS = {
    "gpt2-tied": _causal("GPT2Config", GPT, ("resid_pdrop", "embd_pdrop", "attn_pdrop")),
    "gpt2-untied": _causal("GPT2Config", GPT, ("attn_pdrop",), tie_word_embeddings=False),
    "gpt2-without-position-ids": Case(
        "GPT2Config", CAUSAL, batches.causal_without_positions, GPT, ("resid_pdrop",)
    ),
    "opt": _causal(
        "OPTConfig",
        IDS
        | {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 8,
        },
        ("dropout", "attention_dropout"),
    ),
    "gpt-neox": _causal("GPTNeoXConfig", TEXT, ("hidden_dropout", "attention_dropout")),
    "llama-untied": _causal("LlamaConfig", GROUPED),
    "llama-tied": _causal("LlamaConfig", GROUPED, tie_word_embeddings=True),
    "mistral": _causal("MistralConfig", GROUPED, sliding_window=8),
    "qwen2": _causal("Qwen2Config", GROUPED),
    "qwen3": _causal("Qwen3Config", GROUPED),
    "gemma2": _causal(
        "Gemma2Config", GROUPED, attention=("eager",), sliding_window=8, query_pre_attn_scalar=8
    ),
    "gemma3": _causal("Gemma3TextConfig", GROUPED, sliding_window=8, query_pre_attn_scalar=8),
}


def _encoder(config: str, auto: str, kind: Kind, dropout=None, **options: Any) -> Case:
    rates = dropout or ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return Case(config, auto, kind, TEXT | LABELS | options, rates)


DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
ENCODERS = {
    f"{name}-{head}": Case(config, auto, kind, TEXT | LABELS | options, rates, attention)
    for name, config, options, rates, attention in [
        (
            "bert",
            "BertConfig",
            {},
            ("hidden_dropout_prob", "attention_probs_dropout_prob"),
            ("eager", "sdpa"),
        ),
        (
            "roberta",
            "RobertaConfig",
            {"max_position_embeddings": 40, "type_vocab_size": 1},
            ("hidden_dropout_prob", "attention_probs_dropout_prob"),
            ("eager", "sdpa"),
        ),
        ("distilbert", "DistilBertConfig", DISTIL, ("dropout",), ("eager", "sdpa")),
        (
            "albert",
            "AlbertConfig",
            {"embedding_size": 8},
            ("hidden_dropout_prob",),
            ("eager", "sdpa"),
        ),
        (
            "deberta-v2",
            "DebertaV2Config",
            {
                "relative_attention": True,
                "position_buckets": 4,
                "max_relative_positions": -1,
                "pos_att_type": ["p2c", "c2p"],
                "share_att_key": True,
                "norm_rel_ebd": "layer_norm",
                "position_biased_input": False,
                "type_vocab_size": 0,
            },
            ("hidden_dropout_prob", "attention_probs_dropout_prob"),
            ("eager",),
        ),
    ]
    for head, auto, kind in [
        ("classification", CLASS, batches.classification),
        ("masked-lm", MASKED, batches.masked),
    ]
}
ENCODER_DECODERS = {
    "t5": Case("T5Config", SEQ2SEQ, batches.seq2seq, T5, ("dropout_rate",)),
    "flan-t5": Case(
        "T5Config",
        SEQ2SEQ,
        batches.seq2seq,
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ("dropout_rate",),
    ),
    "bart": Case("BartConfig", SEQ2SEQ, batches.seq2seq, BART, ("dropout", "attention_dropout")),
}


def _vision(config: str, dropout=("hidden_dropout_prob",), attention=("eager", "sdpa"), **o: Any):
    return Case(config, IMAGES, batches.vision, IMAGE | LABELS | o, dropout, attention)


VISION = {
    "vit": _vision("ViTConfig"),
    "deit": Case(
        "DeiTConfig",
        "DeiTForImageClassification",
        batches.vision,
        IMAGE | LABELS,
        ("hidden_dropout_prob",),
    ),
    "beit": _vision(
        "BeitConfig",
        use_relative_position_bias=True,
        use_absolute_position_embeddings=True,
        layer_scale_init_value=0.1,
        drop_path_rate=0.0,
    ),
    "beit-shared-bias": _vision(
        "BeitConfig",
        use_shared_relative_position_bias=True,
        use_mean_pooling=False,
        drop_path_rate=0.0,
    ),
    "convnext": Case(
        "ConvNextConfig",
        IMAGES,
        batches.vision,
        LABELS
        | {
            "hidden_sizes": [8, 12],
            "depths": [1, 1],
            "num_stages": 2,
            "patch_size": 4,
            "layer_scale_init_value": 0.1,
        },
        (),
        ("eager",),
    ),
}
UNLISTED = {
    "bloom": _causal(
        "BloomConfig",
        IDS | {"hidden_size": 16, "n_layer": 2, "n_head": 2},
        ("hidden_dropout", "attention_dropout"),
        ("eager",),
    ),
    "gpt-neo": _causal(
        "GPTNeoConfig",
        IDS
        | {
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "intermediate_size": 24,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 32,
        },
        ("resid_dropout",),
        ("eager",),
    ),
    "phi": _causal("PhiConfig", TEXT, ("resid_pdrop",)),
    "mpt": _causal(
        "MptConfig",
        IDS | {"d_model": 16, "n_layers": 2, "n_heads": 2, "expansion_ratio": 2, "max_seq_len": 32},
        (),
        ("eager",),
    ),
    "gpt-bigcode": Case(
        "GPTBigCodeConfig", CAUSAL, batches.causal_without_positions, GPT, ("resid_pdrop",)
    ),
    "electra": Case(
        "ElectraConfig", CLASS, batches.classification, TEXT | LABELS | {"embedding_size": 8}
    ),
    "xlnet": Case(
        "XLNetConfig",
        CLASS,
        batches.classification,
        IDS
        | LABELS
        | {"use_mems_eval": False, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
        ("dropout", "summary_last_dropout"),
        ("eager",),
        alone=False,
    ),
    "longformer": Case(
        "LongformerConfig",
        CLASS,
        batches.classification,
        TEXT | LABELS | {"attention_window": 4, "max_position_embeddings": 40},
        attention=("eager",),
    ),
    "clip-text": Case("CLIPTextConfig", "CLIPTextModel", batches.text_features, TEXT, ATTENTION),
    "mamba": Case(
        "MambaConfig",
        CAUSAL,
        batches.causal_without_mask,
        IDS
        | {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "state_size": 4,
            "intermediate_size": 32,
            "time_step_rank": 4,
        },
        (),
        ("eager",),
    ),
    "swin": Case(
        "SwinConfig",
        IMAGES,
        batches.vision,
        LABELS
        | {
            "image_size": SIDE,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [1, 2],
            "window_size": 4,
            "drop_path_rate": 0.0,
        },
        ("hidden_dropout_prob",),
        ("eager",),
    ),
}


def group_norms_for_batch_norms(model: nn.Module) -> None:
    """Put a GroupNorm in the place of every BatchNorm."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(2, child.num_features))


VISION["resnet-group-norm"] = Case(
    "ResNetConfig",
    IMAGES,
    batches.vision,
    LABELS
    | {
        "embedding_size": 4,
        "hidden_sizes": [8, 12],
        "depths": [1, 1],
        "layer_type": "basic",
        "downsample_in_first_stage": True,
    },
    (),
    ("eager",),
    adapt=group_norms_for_batch_norms,
)
EVERY = DECODERS | ENCODERS | ENCODER_DECODERS | VISION | UNLISTED
