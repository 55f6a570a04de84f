"""The CIFAR-10 and CIFAR-100 tasks (Krizhevsky 2009)."""

from collections.abc import Mapping
from typing import ClassVar

from dpft.tasks.base import TASKS
from dpft.tasks.images import ImageTask

NAMES = {"img": "image", "fine_label": "label", "label": "label", "image": "image"}
"""The task's own column names, by the names in data sets on the Hub."""


class CifarTask(ImageTask):
    """Images of one class each."""

    label_bytes: ClassVar[int]
    """Number of bytes before each image of the binary version; the last of these bytes is the
    class."""
    local_form: ClassVar[str | None] = "cifar"

    @property
    def column_names(self) -> Mapping[str, str]:
        """The task's own column names, by the names that files may use."""
        return NAMES


@TASKS.register("cifar10")
class Cifar10(CifarTask):
    """Ten classes."""

    label_bytes: ClassVar[int] = 1
    published_hub_name: ClassVar[str | None] = "uoft-cs/cifar10"


@TASKS.register("cifar100")
class Cifar100(CifarTask):
    """One hundred classes, given by the fine labels."""

    label_bytes: ClassVar[int] = 2
    published_hub_name: ClassVar[str | None] = "uoft-cs/cifar100"
