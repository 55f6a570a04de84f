"""Examples to tensors: right-padded batches with a position id for every token.

Position ids are always expanded to (b, t). A model left to make its own broadcasts one row of them
over the batch (GPT-2, BERT), and then its position embedding has no per-example gradient.

Shapes: b examples, t tokens of the longest example.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.data.tokenization import IGNORED_LABEL, TokenizedExample


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of some examples, each of shape (b, t) and int64."""

    input_ids: Tensor
    """Token ids, padded on the right."""
    attention_mask: Tensor
    """1 for tokens, 0 for padding."""
    position_ids: Tensor
    """0 … t-1 in every row."""
    labels: Tensor
    """The token itself where loss is on it; -100 on the prompt and on padding."""

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch with its tensors on the device."""
        return Batch(
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            position_ids=self.position_ids.to(device),
            labels=self.labels.to(device),
        )


def collate(examples: Sequence[TokenizedExample], pad_token_id: int) -> Batch:
    """Returns the examples as one batch, padded on the right to the longest of them.

    Args:
        examples: At least one example.
        pad_token_id: Token id written into padding; attention never sees it.
    """
    length = max(len(example.input_ids) for example in examples)
    return Batch(
        input_ids=_padded([e.input_ids for e in examples], length, pad_token_id),
        attention_mask=_padded([[1] * len(e.input_ids) for e in examples], length, 0),
        position_ids=torch.arange(length).repeat(len(examples), 1),
        labels=_padded([e.labels for e in examples], length, IGNORED_LABEL),
    )


def _padded(rows: Sequence[list[int]], length: int, value: int) -> Tensor:
    """Returns the rows as one int64 tensor, shape (b, length), filled up with the value."""
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])
