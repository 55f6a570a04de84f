"""Random views of an image: shifted by a few pixels and mirrored (De et al. 2022, section 3.2).

A view depends on the image and on secret bits of the step alone; several views of one record are
one unit, whose gradients are averaged before they are clipped (``task.augmentations``).
"""

from dataclasses import dataclass, replace

import numpy as np

from dpft.data.images.decoding import Pixels
from dpft.data.images.rows import ImageRow
from dpft.data.views import Bits, View

VIEW_BYTES = 24
SHARE_PADDED = 8
"""An image is shifted by up to an eighth of its height and width: 4 pixels of CIFAR's 32."""


@dataclass(frozen=True, kw_only=True)
class RandomView(View):
    """A shift, by pixels of the image mirrored at its edges, and a mirroring with chance 1/2."""

    def __call__(self, row: ImageRow, bits: Bits) -> ImageRow:
        """See ``View.__call__``: the view is made when the image is read."""
        return replace(row, bits=bits(VIEW_BYTES))


def augmented(pixels: Pixels, bits: bytes) -> Pixels:
    """Returns the view of an image that ``VIEW_BYTES`` random bytes choose.

    Args:
        pixels: Shape (channels, height, width).
        bits: Uniform.

    Returns:
        Pixels of the same shape.
    """
    words = np.frombuffer(bits, np.uint64)
    height, width = pixels.shape[1:]
    down, right = (_place(word, size) for word, size in zip(words, (height, width), strict=False))
    pads = [(0, 0), *((size // SHARE_PADDED,) * 2 for size in (height, width))]
    padded = np.pad(pixels, pads, mode="reflect")
    view = padded[:, down : down + height, right : right + width]
    return view[:, :, ::-1] if words[2] & np.uint64(1) else view


def _place(word: np.uint64, size: int) -> int:
    """Returns one of the places that an image of the size can begin at, by 64 uniform bits."""
    return int(word) % (2 * (size // SHARE_PADDED) + 1)
