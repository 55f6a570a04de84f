"""Images to rows: where each is stays as it is, its answer becomes numbers to learn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpft.data.encoding import Encoding
from dpft.data.images.augment import RandomView
from dpft.data.images.grid import grid
from dpft.data.images.layout import ImageLayout, decoder
from dpft.data.images.rows import ImageRow, ImageRows
from dpft.data.views import View
from dpft.kinds import CLASSES
from dpft.tasks.image_records import LabelledImage


@dataclass(frozen=True, kw_only=True)
class ImageEncoding(Encoding):
    """Images for a model that sees one and answers with classes or attributes."""

    layout: ImageLayout
    views: int = 0
    """Random views of a record that a step sees; 0: the image itself."""

    def rows(self, examples: Sequence[LabelledImage]) -> list[ImageRow]:
        """See ``Encoding.rows``."""
        return [ImageRow(place=one.image, answer=self._answer(one)) for one in examples]

    def rows_together(self, examples: Sequence[LabelledImage]) -> ImageRows:
        """See ``Encoding.rows_together``: each image is decoded once, and not kept."""
        places = [one.image for one in examples]
        return ImageRows(
            places,
            [self._answer(one) for one in examples],
            decoder(self.layout.form, self.layout.workers).examine(places),
            views=max(1, self.views),
        )

    def rows_in_chunks(
        self, examples: Sequence[LabelledImage]
    ) -> tuple[ImageRows, NDArray[np.int64]]:
        """See ``Encoding.rows_in_chunks``: as many rows as views."""
        return self.rows_together(examples), np.full(len(examples), max(1, self.views), np.int64)

    @property
    def view(self) -> View | None:
        """See ``Encoding.view``."""
        return RandomView() if self.views else None

    def picture(self, examples: Sequence[LabelledImage]) -> bytes | None:
        """See ``Encoding.picture``: rows of small images, in order."""
        if not examples:
            return None
        form = self.layout.form
        return grid(decoder(form, self.layout.workers).decode([one.image for one in examples]))

    def by_record(self) -> Self:
        """See ``Encoding.by_record``: one random view, where there would be several."""
        return replace(self, views=min(self.views, 1))

    def _answer(self, example: LabelledImage) -> tuple[float, ...]:
        if self.layout.answer != CLASSES:
            return example.answer
        return tuple(float(number == example.label) for number in range(self.layout.outputs))
