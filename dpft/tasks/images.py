"""Base class of image tasks, and the user's own images (``task=images``).

The preprocessing of an image is public and the same for all images. Each image is resized to the
model's size, scaled to 0..1 and normalized by constants. Nothing is computed from the records.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field

from dpft.constants import ATTRIBUTES, LABELS
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne, Count, Positive
from dpft.tasks.base import TASKS, ImagePlace, LabeledImage, Source
from dpft.tasks.classification import ClassTask, check_classes

IMAGE = "image"
AUGMENTATIONS = "augmentations"


class ImageTask(ClassTask):
    """Base class of all image tasks; its columns are the image and its label."""

    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; or names of the attributes."""
    image_size: AtLeastOne | None = None
    """Height and width to which images are resized; null takes the size that the model was made
    for."""
    mean: tuple[float, ...] = (0.5,)
    """Mean of each channel, which is subtracted from pixels in 0..1; one number applies to all
    channels."""
    std: tuple[Positive, ...] = (0.5,)
    """Standard deviation of each channel, by which pixels are divided; one number applies to all
    channels."""
    augmentations: Count = 0
    """Number of random views of each record in a step; 0 uses the image itself. The gradients of
    the views are averaged and clipped as one (De et al. 2022). The views are drawn from a secret
    key."""
    workers: Count = 2
    """Number of processes that decode images; 0 decodes images in the run's own process."""

    modality: ClassVar[str] = "image"
    rows_key: ClassVar[str | None] = AUGMENTATIONS
    unit_definition: ClassVar[str] = "image; equal images are records of their own"

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.labels:
            check_classes(self.labels)

    @property
    def lacks(self) -> str | None:
        """See ``Task.lacks``: the names of the classes."""
        if self.labels:
            return None
        return f"task={self.name} needs task.labels, the names of its classes, got none."

    @property
    def most_rows(self) -> int:
        """See ``Task.most_rows``: the views of a record."""
        return max(1, self.augmentations)

    @property
    def has_attributes(self) -> bool:
        """Whether an image has several labels, each of which is present or absent."""
        return False

    @property
    def answers(self) -> str:
        """See ``Task.answers``."""
        return ATTRIBUTES if self.has_attributes else LABELS

    @property
    def confusable(self) -> tuple[str, ...]:
        """See ``Task.confusable``."""
        return () if self.has_attributes else self.classes

    @property
    def image_in_row(self) -> str:
        """The column of the image."""
        return IMAGE

    @property
    def label_in_row(self) -> str:
        """The column of the class."""
        return "label"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the image and its label, or of its attributes."""
        labels = self.labels if self.has_attributes else (self.label_in_row,)
        return (self.image_in_row, *labels)

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """All columns."""
        return self.columns

    def of_size(self, size: int) -> Self:
        """Return the task with a size for its images, unless the size is configured."""
        return self if self.image_size is not None else self.replace(image_size=size)

    def examples(self, row: Mapping[str, Any]) -> Sequence[LabeledImage]:
        """See ``Task.examples``.

        Args:
            row: The image, as an ``ImagePlace`` or as a data set on the Hub contains it, and its
                label, or a number for each attribute.

        Raises:
            InputError: The image or a label has another type.
        """
        return (LabeledImage(image=_place(row[self.image_in_row]), answer=self.answer(row)),)

    def answer(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the number of a row's class, or 0 or 1 for each attribute.

        Raises:
            InputError: A label is not one of the task's labels. The message does not quote it.
        """
        if self.has_attributes:
            return tuple(attribute_value(row[name], name) for name in self.labels)
        return (self.label(row[self.label_in_row]),)

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> LabeledImage:
        """See ``Task.canary``.

        Raises:
            InputError: Always, because canaries are words.
        """
        raise InputError(
            f"audit.canaries needs a text task, got task={self.name}.",
            key="audit.canaries",
            hint="audit.canaries=0",
        )


def _place(value: Any) -> ImagePlace:
    """Return the location of the image in a column."""
    if isinstance(value, ImagePlace):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return ImagePlace(file="", content=value["bytes"])
    if isinstance(value, bytes):
        return ImagePlace(content=value)
    if hasattr(value, "save") and hasattr(value, "mode"):  # a Pillow image from a Python program
        stream = io.BytesIO()
        value.save(stream, "PNG")
        return ImagePlace(content=stream.getvalue())
    raise InputError("the column image must contain an encoded image.", key="image")


def attribute_value(value: Any, name: str) -> float:
    """Return 0 or 1 for an attribute that is spelled as 0 or 1, false or true, or -1 or 1.

    Raises:
        InputError: The attribute is spelled differently. The message does not quote it.
    """
    if value in (0, -1, "0", "-1", False):
        return 0.0
    if value in (1, "1", True):
        return 1.0
    raise InputError(f"the attribute {name} must be 0 or 1, or -1 or 1.", key=name)


@TASKS.register("images")
class ImagesTask(ImageTask):
    """Images of one class each; in a table, ``task.image`` and ``task.label`` name the columns."""

    source: Source = "local"
    image_column: str = Field(default="image", alias="image")
    """In a table, the column of the image's path, relative to the table's folder; in Parquet, the
    column may contain the image itself."""
    label_column: str = Field(default="label", alias="label")
    """In a table, the column of the class: its name or its number."""

    takes_file: ClassVar[bool] = True
    local_form: ClassVar[str | None] = "images"

    @property
    def image_in_row(self) -> str:
        """The column of the image."""
        return self.image_column

    @property
    def label_in_row(self) -> str:
        """The column of the class."""
        return self.label_column

    def is_published(self, split: str) -> bool:
        """Return False, because your own images are never published."""
        return False

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return "task.image" if column == self.image_column else "task.label"
