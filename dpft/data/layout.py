"""How the rows of a task lie in a batch for a model: what every batch, layout and row store is.

Texts' layout is in ``collation``, images' in ``images/layout``. A row is what an encoding makes of
a record; only its layout looks into it, so that what trains, checks and plans knows no kind of it.
Shapes: b examples, t tokens of the longest example, k label words or outputs of a classifier.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """How rows lie in a batch; public configuration."""

    kind: str = CAUSAL
    """Kind of model."""
    answer: str = TEXT
    """As ``Batch.answer``."""
    outputs: int = 1
    """Numbers a classifier gives."""
    pad_to_multiple_of: int = 1
    """Lengths of batches are multiples of it, but for the longest there may be; changes no loss."""

    @property
    def has_lengths(self) -> bool:
        """Whether rows have lengths, in tokens."""
        return True

    @abstractmethod
    def length(self, row: Any) -> int:
        """Returns a row's length, by which rows are sorted: of a text, the tokens that it reads."""

    @abstractmethod
    def longest(self, rows: Sequence[Any]) -> int:
        """Returns the length of the longest row, of what is read or what is written."""

    @abstractmethod
    def padded_length(self, longest: int) -> int:
        """Returns the length of a batch whose longest row has the length ``longest``."""

    @abstractmethod
    def cost(self, row: Any) -> int:
        """Returns the length of all that a model computes for a row."""

    @abstractmethod
    def collate(self, rows: Sequence[Any]) -> Batch:
        """Returns the rows as one batch.

        Args:
            rows: At least one row.
        """

    def for_training(self, *, multiple: int, longest: int) -> Self:
        """Returns it as training has it, which may pad to a multiple, at most to ``longest``."""
        return self

    def unpadded(self) -> Self:
        """Returns it without padding beyond a batch's longest row."""
        return replace(self, pad_to_multiple_of=1)

    @abstractmethod
    def synthetic(
        self, model: nn.Module, count: int, longest: int, *, ragged: bool = True
    ) -> Sequence[Any]:
        """Returns random rows, the same ones every time, to try a model on before any record is.

        Args:
            model: That will read them.
            count: How many.
            longest: Length of the longest.
            ragged: Whether the others are shorter.
        """


class EncodedRows(Sequence[Any]):
    """Rows in order, each made when it is asked for."""

    @property
    @abstractmethod
    def has_label(self) -> NDArray[np.bool_]:
        """Whether each row has anything to learn."""

    @property
    @abstractmethod
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a part of each row's record had no room; private."""

    @property
    def unreadable(self) -> list[str]:
        """Names of the records that could not be read, and so have nothing to learn; private."""
        return []

    @property
    def converted(self) -> int:
        """How many records had another form than the model's, such as gray images; private."""
        return 0

    @abstractmethod
    def only(self, places: NDArray[np.bool_]) -> Self:
        """Returns the rows at the places that are True."""

    @abstractmethod
    def add(self, rows: Self) -> None:
        """Adds others at the end."""

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """Yields all that the rows hold, in their order and in a form of one meaning."""
