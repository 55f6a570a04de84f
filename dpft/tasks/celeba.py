"""The CelebA task (Liu et al. 2015): 40 attributes of faces."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TASKS
from dpft.tasks.images import IMAGE, ImageTask, attribute_value


@TASKS.register("celeba")
class CelebA(ImageTask):
    """All attributes with one summed loss for each image, or one attribute as two classes."""

    attribute: str | None = None
    """The one attribute to learn, such as Smiling; null learns all attributes in task.labels."""

    published_hub_name: ClassVar[str | None] = "flwrlabs/celeba"
    local_form: ClassVar[str | None] = "celeba"

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.attribute is not None and self.metrics == ("mean_accuracy",):
            object.__setattr__(self, "metrics", ("accuracy",))
        if self.attribute is not None and self.attribute not in self.labels:
            raise InputError(
                f"task.attribute must be one of task.labels, got {self.attribute!r}.",
                key="task.attribute",
                value=self.attribute,
                hint=f"task.attribute={self.labels[0]}",
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """See ``ClassTask.classes``."""
        return self.labels if self.attribute is None else (f"not {self.attribute}", self.attribute)

    @property
    def has_attributes(self) -> bool:
        """See ``ImageTask.has_attributes``."""
        return self.attribute is None

    @property
    def columns(self) -> tuple[str, ...]:
        """See ``Task.columns``."""
        return super().columns if self.attribute is None else (IMAGE, self.attribute)

    @property
    def column_names(self) -> Mapping[str, str]:
        """The task's own column names, by the names that files may use."""
        return {"img": IMAGE}

    def answer(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        """See ``ImageTask.answer``."""
        if self.attribute is None:
            return super().answer(row)
        return (attribute_value(row[self.attribute], self.attribute),)
