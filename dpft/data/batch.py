"""What a model reads of some examples at once, and what their losses are made of.

Shapes: b examples, t tokens of the longest example, k label words or outputs of a classifier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpft.kinds import CAUSAL, TEXT


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a model reads of some examples, and what their losses are made of."""

    inputs: Mapping[str, Tensor]
    """Keyword arguments of the model: ``input_ids`` and others, each of shape (b, t) and int64; or
    ``pixel_values``, shape (b, channels, height, width), float32."""
    labels: Tensor
    """For texts: token ids, -100 where no loss is, shape (b, t). Else: probabilities of the label
    words or classes, or the score, shape (b, k), float32."""
    kind: str = CAUSAL
    """Kind of model it is for."""
    answer: str = TEXT
    """What the labels are: a text, a label word, a class, a score or attributes."""
    positions: Tensor | None = None
    """Where the label word is predicted, shape (b,), int64."""
    words: Tensor | None = None
    """Token ids of the label words, shape (k,), int64."""
    weights: Tensor | None = None
    """What each example's loss is multiplied with, shape (b,), float32; None: 1."""
    units: Tensor | None = None
    """Privacy unit of each example, shape (b,), int64; None: each is a unit of its own."""

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch with its tensors on the device."""
        return replace(
            self,
            inputs={name: tensor.to(device) for name, tensor in self.inputs.items()},
            labels=self.labels.to(device),
            positions=None if self.positions is None else self.positions.to(device),
            words=None if self.words is None else self.words.to(device),
            weights=None if self.weights is None else self.weights.to(device),
            units=None if self.units is None else self.units.to(device),
        )
