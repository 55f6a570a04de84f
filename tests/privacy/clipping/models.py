"""A small GPT-2 and ragged, right-padded records for it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 61


def gpt2(*, tied: bool = True, dropout: float = 0.0, dtype=torch.float32) -> nn.Module:
    """Return a GPT-2 of two layers, every parameter trainable and far from symmetric."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=1,
        tie_word_embeddings=tied,
    )
    model = GPT2LMHeadModel(config).to(dtype).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@dataclass
class Records:
    """Token ids, -1 for padding, and labels, -100 for none; both (b, t).

    Attributes:
        weights: Factor of each record's loss, shape (b,).
    """

    ids: Tensor
    labels: Tensor
    weights: Tensor

    @property
    def mask(self) -> Tensor:
        """Attention mask, shape (b, t)."""
        return (self.ids >= 0).long()

    def take(self, rows) -> "Records":
        """Return some records."""
        return Records(self.ids[rows], self.labels[rows], self.weights[rows])

    def alone(self) -> list["Records"]:
        """Return each record separately, without padding."""
        lengths = self.mask.sum(1).tolist()
        return [
            Records(self.ids[k : k + 1, :n], self.labels[k : k + 1, :n], self.weights[k : k + 1])
            for k, n in enumerate(lengths)
        ]


register_dataclass(Records)


def records(lengths=(7, 12, 3, 9), *, width: int | None = None, seed: int = 1) -> Records:
    """Draw records; the first third of each has no label."""
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    ids = torch.full((len(lengths), width), -1)
    labels = torch.full((len(lengths), width), -100)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(0, VOCABULARY, (length,), generator=generator)
        start = length // 3
        labels[row, start:length] = ids[row, start:length]
    return Records(ids, labels, torch.ones(len(lengths)))


SYNTHETIC = (records((5, 9, 2, 7), seed=11), records((4, 6, 3), seed=12))
"""Batches of a self-check: ragged rows in no order, at two lengths."""


def losses_of(model: nn.Module, batch: Records) -> Tensor:
    """Return the mean cross-entropy over labeled positions of each record; 0 if there are none."""
    count, length = batch.ids.shape
    positions = torch.arange(length).expand(count, length)
    logits = model(
        input_ids=batch.ids.clamp(min=0), attention_mask=batch.mask, position_ids=positions
    ).logits[:, :-1]
    labels = batch.labels[:, 1:]
    losses = F.cross_entropy(logits.mT, labels, ignore_index=-100, reduction="none")
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1) * batch.weights
