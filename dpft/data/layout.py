"""How the rows of a task lie in a batch for a model: what every layout is.

Texts' are in ``collation``, images' in ``images/layout``. A row is what an encoding makes of a
record; only its layout looks into it, so that what trains, checks and plans knows no kind of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import nn

from dpft.data.batch import Batch
from dpft.kinds import CAUSAL, TEXT


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
