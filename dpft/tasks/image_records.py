"""What a task of images makes of a row: where the image is, and its answer.

No pixels are held: an image is read when a batch needs it.
"""

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, kw_only=True)
class ImagePlace:
    """Where one image is: a file, a stretch of one, or bytes in memory."""

    file: str = ""
    """The file's path; empty: the image is ``content``."""
    offset: int = 0
    """Where in the file a raw image begins."""
    shape: tuple[int, ...] = ()
    """Channels, height and width of a raw image, a byte a number, channel after channel; empty:
    the whole is an encoded image, such as PNG or JPEG."""
    content: bytes = b""

    @property
    def name(self) -> str:
        """How messages name it: the file, never what is in it."""
        if not self.file:
            return "an image in memory"
        number = f", byte {self.offset}" if self.shape else ""
        return f"{self.file}{number}"


@dataclass(frozen=True, kw_only=True)
class LabeledImage:
    """One record of a task of images, the unit of privacy."""

    image: ImagePlace
    answer: tuple[float, ...]
    """The number of its class; or 0 or 1 for each attribute."""

    @property
    def label(self) -> float:
        """The number of its class."""
        return self.answer[0]

    @property
    def shown(self) -> str:
        """The record in words, for predictions: its file's name."""
        return PurePath(self.image.file).name or "image"
