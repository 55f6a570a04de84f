"""Records that are images, as training keeps them: where each lies, its answer, a hash of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from dpft.data.images.decoding import Examined, Pixels
from dpft.data.layout import EncodedRows
from dpft.tasks.image_records import ImagePlace


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRow:
    """An image as it is collated."""

    answer: tuple[float, ...]
    """Probabilities of the classes, or 0 or 1 for each attribute."""
    place: ImagePlace | None = None
    pixels: Pixels | None = None
    """Shape (channels, height, width); None: to be read from ``place``."""
    bits: bytes | None = None
    """What its random view is drawn from; None: it is seen as it is."""
    weight: float = 1.0
    """Of its loss: views of one record share it."""


class ImageRows(EncodedRows):
    """Images in order, by where they are; several rows may be views of one."""

    def __init__(
        self,
        places: Sequence[ImagePlace] = (),
        answers: Sequence[tuple[float, ...]] = (),
        examined: Sequence[Examined] = (),
        views: int = 1,
    ) -> None:
        """Holds an image each; ``views`` rows of each stand one after the other."""
        self._places, self._answers = list(places), list(answers)
        self._examined = list(examined)
        self._which = np.repeat(np.arange(len(self._places)), views)
        self._weight = 1 / views

    def __len__(self) -> int:
        return len(self._which)

    @overload
    def __getitem__(self, at: int) -> ImageRow: ...

    @overload
    def __getitem__(self, at: slice) -> list[ImageRow]: ...

    def __getitem__(self, at: int | slice) -> ImageRow | list[ImageRow]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        number = self._which[at]
        return ImageRow(
            place=self._places[number], answer=self._answers[number], weight=self._weight
        )

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """See ``EncodedRows.has_label``: a broken image has nothing to learn."""
        broken = np.array([one.is_broken for one in self._examined], np.bool_)
        return ~broken[self._which]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """See ``EncodedRows.truncated``: of an image there is no part without room."""
        return np.zeros(len(self), np.bool_)

    @property
    def unreadable(self) -> list[str]:
        """See ``EncodedRows.unreadable``: broken images."""
        return [
            place.name
            for place, one in zip(self._places, self._examined, strict=True)
            if one.is_broken
        ]

    @property
    def converted(self) -> int:
        """See ``EncodedRows.converted``: images of other channels."""
        return sum(one.is_converted for one in self._examined)

    def only(self, places: NDArray[np.bool_]) -> Self:
        """See ``EncodedRows.only``."""
        self._which = self._which[places]
        return self

    def add(self, rows: Self) -> None:
        """See ``EncodedRows.add``."""
        self._which = np.concatenate([self._which, rows._which + len(self._places)])
        self._places += rows._places
        self._answers += rows._answers
        self._examined += rows._examined
        self._weight = rows._weight

    def content(self) -> Iterator[bytes]:
        """See ``EncodedRows.content``: each image's hash and its answer."""
        for number in self._which:
            answer = np.array(self._answers[number], np.float64)
            yield self._examined[number].digest.ljust(32, b"\0") + answer.tobytes()
