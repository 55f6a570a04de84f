"""Conversion of images to tensors: decoding, random views, normalization and collation.

Worker processes read, decode and resize the images (``dpft/data/pixels.py``). The result depends
only on the image and on public configuration. An image is decoded each time a batch needs it, so
that at most the images of one batch are in memory. Before training, all images are decoded once to
find broken images and to compute a hash of each image.

A random view (De et al. 2022, section 3.2) is shifted by a few pixels and mirrored. It depends only
on the image and on secret bits of the step. Several views of one record form one privacy unit,
whose gradients are averaged before they are clipped (``task.augmentations``). Pixels range from 0
to 1 and are normalized by public constants.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpft.constants import ATTRIBUTES, CLASSES, IMAGE_CLASSIFIER
from dpft.data.batches import Batch, Bits, EncodedRows, Layout, RowView
from dpft.data.encoding import Encoding
from dpft.data.pixels import GRAY, BrokenImage, Decoder, Examined, ImageForm, Pixels
from dpft.errors import InputError, RunError
from dpft.tasks.base import ImagePlace, LabeledImage


def check_pillow() -> None:
    """Check that Pillow is installed, so that images can be read.

    Raises:
        InputError: Pillow is not installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise InputError(
            "images need Pillow, which is not installed.", key=None, hint="pip install pillow"
        ) from error


COLUMNS = 10
SIDE, GAP = 56, 4
"""Height and width of an image in the grid, and the gap between two images, in pixels."""
BETWEEN = 255


def grid(images: Pixels) -> bytes:
    """Return images in rows of ten, as the bytes of a PNG file."""
    from PIL import Image

    rows, side = -(-len(images) // COLUMNS), SIDE + GAP
    sheet = np.full((rows * side + GAP, COLUMNS * side + GAP, 3), BETWEEN, np.uint8)
    for number, image in enumerate(images):
        planes = image.repeat(3, axis=0) if len(image) == GRAY else image
        small = Image.fromarray(planes.transpose(1, 2, 0)).resize((SIDE, SIDE))
        down, right = (GAP + at * side for at in divmod(number, COLUMNS))
        sheet[down : down + SIDE, right : right + SIDE] = np.asarray(small)
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "PNG")
    return stream.getvalue()


def tiles(sheet: bytes) -> Iterator[bytes]:
    """Yield each image of a ``grid`` as PNG, in order; the last images may be blank."""
    from PIL import Image

    with Image.open(io.BytesIO(sheet)) as whole:
        for down in range(GAP, whole.height, SIDE + GAP):
            for right in range(GAP, whole.width, SIDE + GAP):
                stream = io.BytesIO()
                whole.crop((right, down, right + SIDE, down + SIDE)).save(stream, "PNG")
                yield stream.getvalue()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRow:
    """An image before collation."""

    answer: tuple[float, ...]
    """Probabilities of the classes, or 0 or 1 for each attribute."""
    place: ImagePlace | None = None
    pixels: Pixels | None = None
    """Pixels of shape (channels, height, width); None: read them from ``place``."""
    bits: bytes | None = None
    """Random bytes that select the random view; None: use the image unchanged."""
    weight: float = 1.0
    """Weight of the row's loss; the weights of the views of one record sum to 1."""


class ImageRows(EncodedRows):
    """Images in order, stored as locations; several rows may be views of one image."""

    def __init__(
        self,
        places: Sequence[ImagePlace] = (),
        answers: Sequence[tuple[float, ...]] = (),
        examined: Sequence[Examined] = (),
        views: int = 1,
    ) -> None:
        """Store the images; each image has ``views`` consecutive rows."""
        self._places, self._answers = list(places), list(answers)
        self._examined = list(examined)
        self._which = np.repeat(np.arange(len(self._places)), views)
        self._weight = 1 / views

    def __len__(self) -> int:
        return len(self._which)

    def _at(self, place: int) -> ImageRow:
        number = self._which[place]
        return ImageRow(
            place=self._places[number], answer=self._answers[number], weight=self._weight
        )

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """See ``EncodedRows.has_label``; false for a broken image."""
        broken = np.array([one.is_broken for one in self._examined], np.bool_)
        return ~broken[self._which]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """See ``EncodedRows.truncated``; images are never truncated."""
        return np.zeros(len(self), np.bool_)

    @property
    def unreadable(self) -> list[str]:
        """See ``EncodedRows.unreadable``; returns the names of the broken images."""
        return [
            place.name
            for place, one in zip(self._places, self._examined, strict=True)
            if one.is_broken
        ]

    @property
    def converted(self) -> int:
        """See ``EncodedRows.converted``; counts the images with another number of channels."""
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
        """See ``EncodedRows.content``; yields the hash and the answer of each image."""
        for number in self._which:
            answer = np.array(self._answers[number], np.float64)
            yield self._examined[number].digest.ljust(32, b"\0") + answer.tobytes()


VIEW_BYTES = 24
SHARE_PADDED = 8
"""Divisor of the largest shift: an eighth of height and width, 4 pixels of CIFAR's 32."""


@dataclass(frozen=True, kw_only=True)
class RandomView(RowView):
    """A random shift, padded by reflection at the edges, and mirroring with probability 1/2."""

    def __call__(self, row: ImageRow, bits: Bits) -> ImageRow:
        """See ``RowView.__call__``; the view is computed when the image is read."""
        return replace(row, bits=bits(VIEW_BYTES))


def augmented(pixels: Pixels, bits: bytes) -> Pixels:
    """Return the view of an image that ``VIEW_BYTES`` random bytes select.

    Args:
        pixels: Pixels of shape (channels, height, width).
        bits: Uniformly random bytes.

    Returns:
        Pixels of the same shape.
    """
    words = np.frombuffer(bits, np.uint64)
    height, width = pixels.shape[1:]
    down, right = (
        int(word) % (2 * (size // SHARE_PADDED) + 1)  # start of the view in the padded image
        for word, size in zip(words, (height, width), strict=False)
    )
    pads = [(0, 0), *((size // SHARE_PADDED,) * 2 for size in (height, width))]
    padded = np.pad(pixels, pads, mode="reflect")
    view = padded[:, down : down + height, right : right + width]
    return view[:, :, ::-1] if words[2] & np.uint64(1) else view


LARGEST = 255


@dataclass(frozen=True, kw_only=True)
class ImageLayout(Layout):
    """Batch layout of images of one size; every row has length 1."""

    kind: str = IMAGE_CLASSIFIER
    answer: str = CLASSES
    form: ImageForm
    mean: tuple[float, ...]
    """Mean of each channel, for pixels between 0 and 1."""
    std: tuple[float, ...]
    """Standard deviation of each channel; the pixels are divided by it."""
    workers: int = 0
    """Number of processes that decode images."""

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
            RunError: An image can no longer be read. The message names its file.
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
        """See ``Layout.synthetic``; random pixels and random answers."""
        form, generator = self.form, np.random.default_rng(0)
        shape = (count, form.channels, form.height, form.width)
        pixels = generator.integers(0, LARGEST + 1, shape, np.uint8)
        answers = generator.random((count, self.outputs))
        if self.answer == CLASSES:
            answers /= answers.sum(axis=1, keepdims=True)
        if self.answer == ATTRIBUTES:
            answers = (answers > 0.5).astype(np.float64)
        return [
            ImageRow(pixels=image, answer=tuple(answer))
            for image, answer in zip(pixels, answers.tolist(), strict=True)
        ]

    def _pixels(self, rows: Sequence[ImageRow]) -> Pixels:
        """Return the pixels of the rows, shape (b, channels, height, width)."""
        unread = [row.place for row in rows if row.pixels is None and row.place is not None]
        try:
            read = iter(decoder(self.form, self.workers).decode(unread)) if unread else iter(())
        except BrokenImage as error:
            raise RunError(
                f"{error} Restore the file if it is a training record, because a run needs it"
                " unchanged; in other splits, repair or remove it."
            ) from error
        seen = [row if row.pixels is not None else replace(row, pixels=next(read)) for row in rows]
        return np.stack([_viewed(row) for row in seen])

    def _normalized(self, pixels: Pixels) -> Tensor:
        mean, std = (
            torch.tensor(per_channel).view(1, -1, 1, 1) for per_channel in (self.mean, self.std)
        )
        return (torch.from_numpy(pixels).float() / LARGEST - mean) / std


@cache
def decoder(form: ImageForm, workers: int) -> Decoder:
    """Return the shared decoder of a form, whose processes serve training and evaluation."""
    return Decoder(form, workers)


def _viewed(row: ImageRow) -> Pixels:
    assert row.pixels is not None
    return row.pixels if row.bits is None else augmented(row.pixels, row.bits)


@dataclass(frozen=True, kw_only=True)
class ImageEncoding(Encoding):
    """Encoding of images for a model that predicts classes or attributes."""

    layout: ImageLayout
    views: int = 0
    """Number of random views of a record in each step; 0: the image itself."""

    def rows(self, examples: Sequence[LabeledImage]) -> list[ImageRow]:
        """See ``Encoding.rows``."""
        return [ImageRow(place=one.image, answer=self._answer(one)) for one in examples]

    def rows_together(self, examples: Sequence[LabeledImage]) -> ImageRows:
        """See ``Encoding.rows_together``; each image is decoded once, and no pixels are kept."""
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
        """See ``Encoding.rows_in_chunks``; a record has one row per view."""
        return self.rows_together(examples), np.full(len(examples), max(1, self.views), np.int64)

    @property
    def view(self) -> RowView | None:
        """See ``Encoding.view``."""
        return RandomView() if self.views else None

    def picture(self, examples: Sequence[LabeledImage]) -> bytes | None:
        """See ``Encoding.picture``; returns thumbnails of the images, in order."""
        if not examples:
            return None
        return grid(self._decoder.decode([one.image for one in examples]))

    def readable(self, examples: Sequence[Any]) -> list[Any]:
        """See ``Encoding.readable``; returns the images that are not broken."""
        examined = self._decoder.examine([one.image for one in examples])
        return [one for one, seen in zip(examples, examined, strict=True) if not seen.is_broken]

    def by_record(self) -> Self:
        """See ``Encoding.by_record``; a record has at most one random view."""
        return replace(self, views=min(self.views, 1))

    @property
    def _decoder(self) -> Decoder:
        return decoder(self.layout.form, self.layout.workers)

    def _answer(self, example: LabeledImage) -> tuple[float, ...]:
        if self.layout.answer != CLASSES:
            return example.answer
        return tuple(float(number == example.label) for number in range(self.layout.outputs))
