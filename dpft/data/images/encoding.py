"""Images to rows: where each is stays as it is, its answer becomes numbers to learn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpft.data.encoding import Encoding
from dpft.data.images.augment import RandomView
from dpft.data.images.decoding import Decoder
from dpft.data.images.grid import grid
from dpft.data.images.layout import ImageLayout, decoder
from dpft.data.images.rows import ImageRow, ImageRows
from dpft.data.views import View
from dpft.kinds import CLASSES
from dpft.tasks.image_records import LabeledImage


@dataclass(frozen=True, kw_only=True)
class ImageEncoding(Encoding):
    """Images for a model that sees one and answers with classes or attributes."""

    layout: ImageLayout
    views: int = 0
    """Random views of a record that a step sees; 0: the image itself."""

    def rows(self, examples: Sequence[LabeledImage]) -> list[ImageRow]:
        """See ``Encoding.rows``."""
        return [ImageRow(place=one.image, answer=self._answer(one)) for one in examples]

    def rows_together(self, examples: Sequence[LabeledImage]) -> ImageRows:
        """See ``Encoding.rows_together``: each image is decoded once, and not kept."""
        places = [one.image for one in examples]
        return ImageRows(
            places,
            [self._answer(one) for one in examples],
            self._decoder.examine(places),
            views=max(1, self.views),
        )

    def rows_in_chunks(
        self, examples: Sequence[LabeledImage]
    ) -> tuple[ImageRows, NDArray[np.int64]]:
        """See ``Encoding.rows_in_chunks``: as many rows as views."""
        return self.rows_together(examples), np.full(len(examples), max(1, self.views), np.int64)

    @property
    def view(self) -> View | None:
        """See ``Encoding.view``."""
        return RandomView() if self.views else None

    def picture(self, examples: Sequence[LabeledImage]) -> bytes | None:
        """See ``Encoding.picture``: rows of small images, in order."""
        if not examples:
            return None
        return grid(self._decoder.decode([one.image for one in examples]))

    def readable(self, examples: Sequence[Any]) -> list[Any]:
        """See ``Encoding.readable``: images that are complete."""
        examined = self._decoder.examine([one.image for one in examples])
        return [one for one, seen in zip(examples, examined, strict=True) if not seen.is_broken]

    def by_record(self) -> Self:
        """See ``Encoding.by_record``: one random view, where there would be several."""
        return replace(self, views=min(self.views, 1))

    @property
    def _decoder(self) -> Decoder:
        return decoder(self.layout.form, self.layout.workers)

    def _answer(self, example: LabeledImage) -> tuple[float, ...]:
        if self.layout.answer != CLASSES:
            return example.answer
        return tuple(float(number == example.label) for number in range(self.layout.outputs))
