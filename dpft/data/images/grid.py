"""Images side by side in one PNG, small, to be looked at."""

import io

import numpy as np

from dpft.data.images.decoding import GRAY, Pixels

COLUMNS = 10
SIDE, GAP = 56, 4
"""Height and width of an image in the grid, and what is between two, in pixels."""
BETWEEN = 255


def grid(images: Pixels) -> bytes:
    """Returns images in rows of ten, as PNG.

    Args:
        images: Shape (n, channels, height, width), at least one.
    """
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
