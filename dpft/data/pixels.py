"""Decoding and resizing of image files with Pillow in worker processes.

Each worker process imports this module. The module imports neither torch nor transformers, so that
a worker starts quickly and uses little memory.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpft.tasks.base import ImagePlace

Pixels = NDArray[np.uint8]
Made = TypeVar("Made")

GRAY, COLOR = 1, 3
FEW = 16
"""Largest number of encoded images that are decoded in this process instead of in workers."""
MOST_PIXELS = 2**28
"""Maximum number of pixels of an image. A file of a few bytes can describe an image that is larger
than the memory."""


class BrokenImage(Exception):
    """Error for a file that is not a complete image; the message names only the file."""


@dataclass(frozen=True, kw_only=True)
class ImageForm:
    """Channels and size to which every image is converted; public."""

    channels: int
    """1 for gray, or 3 for color."""
    height: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """Facts about an image before training; private."""

    is_broken: bool
    is_converted: bool
    """Whether the image has other channels than the form."""
    digest: bytes
    """SHA-256 of the pixels; empty for a broken image."""


class Decoder:
    """Decoder of images, which uses worker processes for large batches if there are workers."""

    def __init__(self, form: ImageForm, workers: int = 0) -> None:
        """Set the form; the ``workers`` processes start when they are first needed."""
        self.form, self._workers = form, workers

    def decode(self, places: Sequence[ImagePlace]) -> Pixels:
        """Return the pixels of images, shape (n, channels, height, width), uint8.

        Raises:
            BrokenImage: An image cannot be decoded. The message names its file.
        """
        form = self.form
        decoded = self._each(_pixels, places)
        broken = next((at for at, pixels in enumerate(decoded) if pixels is None), None)
        if broken is not None:
            raise BrokenImage(f"{places[broken].name} is not a complete image.")
        shape = (len(places), form.channels, form.height, form.width)
        return np.stack([pixels for pixels in decoded if pixels is not None]).reshape(shape)

    def examine(self, places: Sequence[ImagePlace]) -> list[Examined]:
        """Return facts about each image after decoding it; no pixels are kept."""
        return self._each(_examined, places)

    def _each(
        self, work: Callable[[ImagePlace, ImageForm], Made], places: Sequence[ImagePlace]
    ) -> list[Made]:
        encoded = sum(not place.shape for place in places)
        if not self._workers or encoded <= FEW:
            return [work(place, self.form) for place in places]
        from joblib import Parallel, delayed

        size = max(1, -(-len(places) // (4 * self._workers)))
        pieces = [places[at : at + size] for at in range(0, len(places), size)]
        # The processes stay alive for the next batch. No image data are written to disk to share
        # them.
        parallel = Parallel(n_jobs=self._workers, backend="loky", max_nbytes=None)
        done = parallel(delayed(_worked)(work, piece, self.form) for piece in pieces)
        return [one for piece_results in done for one in piece_results]


def _worked(
    work: Callable[[ImagePlace, ImageForm], Made], places: Sequence[ImagePlace], form: ImageForm
) -> list[Made]:
    return [work(place, form) for place in places]


def _pixels(place: ImagePlace, form: ImageForm) -> Pixels | None:
    """Return an image's pixels, shape (channels, height, width), or None if it cannot be read."""
    decoded = _read(place, form)
    return None if decoded is None else decoded[0]


def _examined(place: ImagePlace, form: ImageForm) -> Examined:
    decoded = _read(place, form)
    if decoded is None:
        return Examined(is_broken=True, is_converted=False, digest=b"")
    pixels, is_converted = decoded
    digest = hashlib.sha256(pixels.tobytes()).digest()
    return Examined(is_broken=False, is_converted=is_converted, digest=digest)


def _read(place: ImagePlace, form: ImageForm) -> tuple[Pixels, bool] | None:
    """Return the pixels, and whether the image had other channels; None if it cannot be read."""
    from PIL import Image, ImageOps

    try:
        with _opened(place) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                return None
            upright = ImageOps.exif_transpose(opened)
            mode = "L" if form.channels == GRAY else "RGB"
            source_channels = 1 if upright.mode in ("1", "L", "LA", "I", "F", "I;16") else COLOR
            if source_channels == 1 and upright.mode in ("I", "F", "I;16"):
                upright = Image.fromarray(
                    (np.clip(np.asarray(upright).astype(np.float64), 0, 65535) / 257)
                    .round()
                    .astype(np.uint8)
                )
            if "A" in upright.getbands() or "transparency" in upright.info:
                layer = upright.convert("RGBA")
                upright = Image.new("RGBA", layer.size, (0, 0, 0, 255))
                upright.alpha_composite(layer)
            image = upright.convert(mode)
            if image.size != (form.width, form.height):
                image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, Image.DecompressionBombError):
        return None
    gray = pixels[None] if form.channels == GRAY else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(gray), source_channels != form.channels


def _opened(place: ImagePlace) -> "Image.Image":  # type: ignore[name-defined] # noqa: F821
    from PIL import Image

    if not place.shape:
        return Image.open(io.BytesIO(place.content) if place.content else place.file)
    channels, height, width = place.shape
    count = channels * height * width
    if place.file:
        raw = np.fromfile(place.file, np.uint8, count, offset=place.offset)
    else:
        raw = np.frombuffer(place.content, np.uint8, count, offset=place.offset)
    planes = raw.reshape(channels, height, width)
    return Image.fromarray(planes[0] if channels == GRAY else planes.transpose(1, 2, 0).copy())
