"""The CIFAR-10 and CIFAR-100 tasks (Krizhevsky 2009)."""

from collections.abc import Mapping
from typing import ClassVar

from dpft.tasks.base import TASKS
from dpft.tasks.images import ImageTask

NAMES = {"img": "image", "fine_label": "label", "label": "label", "image": "image"}
"""Columns as data sets on the hub call them."""


class CifarTask(ImageTask):
    """Images of one class each."""

    label_bytes: ClassVar[int]
    """Bytes before an image of the binary version, the last of which is its class."""
    local_form: ClassVar[str | None] = "cifar"

    @property
    def column_names(self) -> Mapping[str, str]:
        """Name of columns as files may have them, to the task's own."""
        return NAMES


@TASKS.register("cifar10")
class Cifar10(CifarTask):
    """Ten classes."""

    label_bytes: ClassVar[int] = 1
    published_hub_name: ClassVar[str | None] = "uoft-cs/cifar10"


@TASKS.register("cifar100")
class Cifar100(CifarTask):
    """A hundred classes, of which the fine labels say which."""

    label_bytes: ClassVar[int] = 2
    published_hub_name: ClassVar[str | None] = "uoft-cs/cifar100"
