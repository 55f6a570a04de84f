"""Images in a batch: pixels from 0 to 1, normalized by public constants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from dpft.data.images.augment import augmented
from dpft.data.images.decoding import BrokenImage, Decoder, ImageForm, Pixels
from dpft.data.images.rows import ImageRow
from dpft.data.layout import Batch, Layout
from dpft.errors import RunError
from dpft.kinds import ATTRIBUTES, CLASSES, IMAGE_CLASSIFIER

LARGEST = 255


@dataclass(frozen=True, kw_only=True)
class ImageLayout(Layout):
    """Images of one size; a row's length is 1."""

    kind: str = IMAGE_CLASSIFIER
    answer: str = CLASSES
    form: ImageForm
    mean: tuple[float, ...]
    """Of each channel, taken from pixels between 0 and 1."""
    std: tuple[float, ...]
    """Of each channel, by which they are divided."""
    workers: int = 0
    """Processes that decode."""

    @property
    def has_lengths(self) -> bool:
        """See ``Layout.has_lengths``."""
        return False

    def length(self, row: ImageRow) -> int:
        """See ``Layout.length``."""
        return 1

    def cost(self, row: ImageRow) -> int:
        """See ``Layout.cost``."""
        return 1

    def longest(self, rows: Sequence[ImageRow]) -> int:
        """See ``Layout.longest``."""
        return 1

    def padded_length(self, longest: int) -> int:
        """See ``Layout.padded_length``."""
        return longest

    def collate(self, rows: Sequence[ImageRow]) -> Batch:
        """See ``Layout.collate``.

        Raises:
            RunError: An image can no longer be read; names its file.
        """
        weights = torch.tensor([row.weight for row in rows])
        return Batch(
            inputs={"pixel_values": self._normalized(self._pixels(rows))},
            labels=torch.tensor([row.answer for row in rows], dtype=torch.float32),
            kind=self.kind,
            answer=self.answer,
            weights=None if bool((weights == 1).all()) else weights,
        )

    def synthetic(
        self, model: nn.Module, count: int, longest: int, *, ragged: bool = True
    ) -> Sequence[ImageRow]:
        """See ``Layout.synthetic``: random pixels and random answers."""
        form, generator = self.form, np.random.default_rng(0)
        shape = (count, form.channels, form.height, form.width)
        pixels = generator.integers(0, LARGEST + 1, shape, np.uint8)
        answers = generator.random((count, self.outputs))
        if self.answer == CLASSES:
            answers /= answers.sum(axis=1, keepdims=True)
        if self.answer == ATTRIBUTES:
            answers = (answers > 0.5).astype(np.float64)
        return [
            ImageRow(pixels=each, answer=tuple(answer))
            for each, answer in zip(pixels, answers.tolist(), strict=True)
        ]

    def _pixels(self, rows: Sequence[ImageRow]) -> Pixels:
        """Returns the rows' pixels, shape (b, channels, height, width)."""
        unread = [row.place for row in rows if row.pixels is None and row.place is not None]
        try:
            read = iter(decoder(self.form, self.workers).decode(unread)) if unread else iter(())
        except BrokenImage as error:
            raise RunError(
                f"{error} Training needs it as it was when the run began; of a split that is"
                " scored, mend it or take it out."
            ) from error
        seen = [row if row.pixels is not None else replace(row, pixels=next(read)) for row in rows]
        return np.stack([_viewed(row) for row in seen])

    def _normalized(self, pixels: Pixels) -> Tensor:
        mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (self.mean, self.std))
        return (torch.from_numpy(pixels).float() / LARGEST - mean) / std


@cache
def decoder(form: ImageForm, workers: int) -> Decoder:
    """Returns the one decoder of a form: its processes serve training and evaluation alike."""
    return Decoder(form, workers)


def _viewed(row: ImageRow) -> Pixels:
    assert row.pixels is not None
    return row.pixels if row.bits is None else augmented(row.pixels, row.bits)
