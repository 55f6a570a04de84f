"""The digits task: 8 × 8 images of handwritten digits from scikit-learn."""

from typing import ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Source
from dpft.tasks.images import ImageTask

HALVES = ("all", "public", "private")


@TASKS.register("digits")
class DigitsTask(ImageTask):
    """Images of 8 × 8 pixels in ten classes."""

    source: Source = "embedded"
    half: str = "all"
    """Training digits to use: all, public or private. public is every second digit, for a first
    training without privacy; private is the other digits."""

    ships_sample: ClassVar[bool] = True
    local_form: ClassVar[str | None] = "digits"

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.effective_source != "embedded":
            raise InputError(
                "task=digits reads only the images that scikit-learn contains. Remove"
                " task.data_dir.",
                key="task.data_dir",
            )
        if self.half not in HALVES:
            raise InputError(
                f"task.half must be one of {', '.join(HALVES)}, got {self.half!r}.",
                key="task.half",
                value=self.half,
                hint="task.half=all",
            )

    @property
    def public_num_train_examples(self) -> int | None:
        """See ``Task.public_num_train_examples``: the size of the half that is trained on."""
        whole = self.embedded_num_train_examples
        if whole is None or self.half == "all":
            return whole
        return whole // 2 + (whole % 2 if self.half == "public" else 0)
