"""How a model counts the positions of a text, and whether it tells two texts apart."""

import inspect

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

COUNTS_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "xmod")
"""Architectures whose first position is the one after their padding token's id."""


def takes_position_ids(model: PreTrainedModel) -> bool:
    """Returns whether the model is to be given position ids, 0 for a row's first token.

    Not where it takes none (T5), and not where it counts from its padding token's id (RoBERTa):
    such a model makes its own, a row for each example.
    """
    encoder = model.base_model
    if "position_ids" not in inspect.signature(encoder.forward).parameters:
        return False
    return not any(
        isinstance(module, nn.Embedding) and module.padding_idx is not None
        for name, module in encoder.named_modules()
        if name.endswith("position_embeddings")
    )


def takes_token_types(config: PretrainedConfig) -> bool:
    """Returns whether the model learned to tell two sentences apart by ids of their own (BERT).

    Not every model takes what a generic tokenizer writes, and GPT-2 would add a word's embedding.
    """
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def max_positions(config: PretrainedConfig) -> int | None:
    """Returns the most tokens the model can read; None: no limit (relative positions)."""
    text = config.get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    if positions is None or getattr(text, "position_biased_input", True) is False:
        return None
    # RoBERTa counts positions from its padding token's id on.
    offset = text.pad_token_id + 1 if text.model_type in COUNTS_FROM_PADDING else 0
    return positions - offset
