"""A tiny BERT with random weights and its tokenizer, as a folder."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]


def save_encoder(folder: Path, *, labels: int | None = None) -> None:
    """Save a model of three layers; with ``labels`` a classifier of so many outputs."""
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16, initializer_range=0.5,
        num_labels=labels or 2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(config) if labels else BertModel(config)
    model.save_pretrained(folder)
    # no length limit, as a folder without tokenizer_config.json
    BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(folder)
