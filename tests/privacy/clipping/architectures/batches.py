"""Ragged, right-padded batches for each kind of model, and their per-example losses."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

VOCABULARY = 40
CLASSES = 3
SIDE = 16
IGNORED = -100


@dataclass
class Examples:
    """Inputs of b examples for every kind of model.

    Attributes:
        ids: Token ids, -1 for padding, shape (b, t).
        targets: Token ids that a second sequence has, as ``ids``.
        classes: Class of each, shape (b,).
        pixels: Images, shape (b, 3, SIDE, SIDE).
        labeled: Whether an example has a label, shape (b,).
    """

    ids: Tensor
    targets: Tensor
    classes: Tensor
    pixels: Tensor
    labeled: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows) -> "Examples":
        return Examples(*(value[rows] for value in vars(self).values()))

    def alone(self, row: int) -> "Examples":
        """Return one example without its padding."""
        one = self.take([row])
        one.ids = one.ids[:, : int((one.ids >= 0).sum())]
        one.targets = one.targets[:, : int((one.targets >= 0).sum())]
        return one

    def padded(self, more: int) -> "Examples":
        """Return the same examples with more padding."""
        ids, targets = (F.pad(x, (0, more), value=-1) for x in (self.ids, self.targets))
        return Examples(ids, targets, self.classes, self.pixels, self.labeled)


register_dataclass(Examples)


def examples(lengths=(5, 9, 3), *, width: int | None = None, seed: int = 1) -> Examples:
    """Draw examples of the given lengths; their targets are one token shorter."""
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    ids = torch.randint(4, VOCABULARY, (len(lengths), width), generator=generator)
    targets = torch.randint(4, VOCABULARY, (len(lengths), width), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = -1
        targets[row, max(2, length - 1) :] = -1
    return Examples(
        ids=ids,
        targets=targets,
        classes=torch.randint(0, CLASSES, (len(lengths),), generator=generator),
        pixels=torch.randn(len(lengths), 3, SIDE, SIDE, generator=generator),
        labeled=torch.ones(len(lengths), dtype=torch.bool),
    )


Kind = Callable[[nn.Module, Examples], Tensor]
"""(model, examples) -> per-example losses, shape (b,)."""


def causal(model: nn.Module, batch: Examples) -> Tensor:
    count, length = batch.ids.shape
    mask = batch.ids >= 0
    positions = torch.arange(length).expand(count, length)
    return _causal(model, batch, attention_mask=mask.long(), position_ids=positions)


def causal_without_positions(model: nn.Module, batch: Examples) -> Tensor:
    return _causal(model, batch, attention_mask=(batch.ids >= 0).long())


def causal_without_mask(model: nn.Module, batch: Examples) -> Tensor:
    return _causal(model, batch)


def _causal(model: nn.Module, batch: Examples, **inputs) -> Tensor:
    logits = model(input_ids=batch.ids.clamp(min=1), use_cache=False, **inputs).logits
    labels = F.pad(batch.ids[:, 1:], (0, 1), value=-1)
    return _token_losses(logits, labels, batch)


def masked(model: nn.Module, batch: Examples) -> Tensor:
    """Predict every third token."""
    asked = torch.arange(batch.ids.shape[1]) % 3 == 1
    inputs = batch.ids.clamp(min=1).masked_fill(asked, 3)
    logits = model(input_ids=inputs, attention_mask=(batch.ids >= 0).long()).logits
    return _token_losses(logits, batch.ids.masked_fill(~asked, -1), batch)


def classification(model: nn.Module, batch: Examples) -> Tensor:
    mask = (batch.ids >= 0).long()
    logits = model(input_ids=batch.ids.clamp(min=1), attention_mask=mask).logits
    return _class_losses(logits, batch)


def seq2seq(model: nn.Module, batch: Examples) -> Tensor:
    shifted = F.pad(batch.targets[:, :-1], (1, 0), value=2)
    logits = model(
        input_ids=batch.ids.clamp(min=1),
        attention_mask=(batch.ids >= 0).long(),
        decoder_input_ids=shifted.clamp(min=1),
        decoder_attention_mask=(batch.targets >= 0).long(),
        use_cache=False,
    ).logits
    return _token_losses(logits, batch.targets, batch)


def vision(model: nn.Module, batch: Examples) -> Tensor:
    pixels = batch.pixels.to(next(model.parameters()).dtype)
    return _class_losses(model(pixel_values=pixels).logits, batch)


def text_features(model: nn.Module, batch: Examples) -> Tensor:
    outputs = model(input_ids=batch.ids.clamp(min=1), attention_mask=(batch.ids >= 0).long())
    mask = (batch.ids >= 0).unsqueeze(-1)
    return (outputs.last_hidden_state.tanh() * mask).sum((1, 2)) * batch.labeled


def _token_losses(logits: Tensor, labels: Tensor, batch: Examples) -> Tensor:
    labels = labels.masked_fill((labels < 0) | ~batch.labeled[:, None], IGNORED)
    losses = F.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _class_losses(logits: Tensor, batch: Examples) -> Tensor:
    return F.cross_entropy(logits, batch.classes, reduction="none") * batch.labeled
