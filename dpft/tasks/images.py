"""Your own images: a folder for each class, or a table with a column of paths."""

from dataclasses import dataclass, field
from typing import ClassVar

from dpft.tasks.base import TASKS
from dpft.tasks.image_task import ImageTask


@TASKS.register("images")
@dataclass(frozen=True, kw_only=True)
class ImagesTask(ImageTask):
    """One class each; in a table ``task.image`` and ``task.label`` name the columns."""

    source: str = "local"
    image_column: str = field(default="image", metadata={"key": "image"})
    """In a table: the column of the image's path, relative to the table's folder; or of the image
    itself, in Parquet."""
    label_column: str = field(default="label", metadata={"key": "label"})
    """In a table: the column of the class, its name or its number."""

    takes_file: ClassVar[bool] = True
    local_form: ClassVar[str | None] = "images"

    def is_published(self, split: str) -> bool:
        """Returns False: images of your own are never published ones."""
        return False

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return "task.image" if column == self.image_column else "task.label"
