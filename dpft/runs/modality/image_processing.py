"""What is done to an image before a model sees it, in the form that transformers reads."""

from pathlib import Path
from typing import Any, Protocol

from dpft.data.images.decoding import ImageForm
from dpft.files import write_json

PREPROCESSOR = "preprocessor_config.json"
BILINEAR = 2
"""Pillow's number of the way of resizing."""


class Normalized(Protocol):
    """What says how images are normalized, such as an ``ImageLayout``."""

    @property
    def form(self) -> ImageForm:
        """What an image is made into."""

    @property
    def mean(self) -> tuple[float, ...]:
        """Of each channel."""

    @property
    def std(self) -> tuple[float, ...]:
        """Of each channel."""


class ImageProcessing:
    """The steps from an image to a model's input; ``save_pretrained`` as processors have it."""

    def __init__(self, values: dict[str, Any]) -> None:
        """Holds what preprocessor_config.json says."""
        self.values = values

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes preprocessor_config.json, which ``AutoImageProcessor`` reads."""
        write_json(Path(folder) / PREPROCESSOR, self.values)


def processor_of(layout: Normalized) -> ImageProcessing:
    """Returns what is done to images as the layout has them."""
    form = layout.form
    return ImageProcessing(
        {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": form.height, "width": form.width},
            "resample": BILINEAR,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(layout.mean),
            "image_std": list(layout.std),
        }
    )
