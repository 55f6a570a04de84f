"""Records as training keeps them, whatever they are made of."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


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
