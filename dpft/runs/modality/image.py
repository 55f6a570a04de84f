"""Records that are images: their size and normalization, and the heads of image classifiers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpft.data.encoding import Encoding
from dpft.data.images.decoding import ImageForm, check_pillow
from dpft.data.images.encoding import ImageEncoding
from dpft.data.images.layout import ImageLayout
from dpft.errors import InputError
from dpft.kinds import ATTRIBUTES, CLASSES, IMAGE_CLASSIFIER, Head
from dpft.models.architecture import Architecture
from dpft.models.source import origin
from dpft.runs.modality.base import MODALITIES, Modality
from dpft.runs.modality.image_processing import processor_of
from dpft.runs.modality.image_sizes import channels_of, check_size, own_size
from dpft.tasks.image_task import ImageTask


class ImageModality(Modality):
    """Images of one size, for classifiers."""

    def head(self, task: ImageTask, architecture: Architecture) -> Head:
        """See ``Modality.head``: a class for each label, or a number for each attribute."""
        own_size(architecture.read, origin(architecture.model))
        return Head(kind=IMAGE_CLASSIFIER, labels=task.classes)

    def fitted(
        self, task: ImageTask, architecture: Architecture, extra_positions: int
    ) -> ImageTask:
        """See ``Modality.fitted``: the height and width that the model was made for."""
        return task.of_size(own_size(architecture.read, origin(architecture.model)))

    def check_fit(
        self,
        task: ImageTask,
        architecture: Architecture,
        *,
        max_new_tokens: int | None,
        extra_positions: int = 0,
    ) -> None:
        """See ``Modality.check_fit``: sizes that the model can take."""
        check_pillow()
        check_size(self._form(task, architecture), architecture.read)

    def processor(
        self,
        task: ImageTask,
        architecture: Architecture,
        head: Head,
        *,
        folder: Path | None = None,
        tokens: tuple[str, ...] = (),
    ) -> Any:
        """See ``Modality.processor``: what is done to an image, as transformers writes it down."""
        return processor_of(self._planned(task, architecture, head))

    def layout(self, task: ImageTask, architecture: Architecture, head: Head) -> ImageLayout:
        """See ``Modality.layout``."""
        return self._planned(task, architecture, head)

    def encoding(
        self, task: ImageTask, architecture: Architecture, head: Head, processor: Any
    ) -> Encoding:
        """See ``Modality.encoding``."""
        layout = replace(self._planned(task, architecture, head), workers=task.workers)
        return ImageEncoding(layout=layout, views=task.augmentations)

    def _planned(self, task: ImageTask, architecture: Architecture, head: Head) -> ImageLayout:
        form = self._form(task, architecture)
        return ImageLayout(
            answer=ATTRIBUTES if task.has_attributes else CLASSES,
            outputs=head.num_outputs,
            form=form,
            mean=_for_channels("mean", task.mean, form.channels),
            std=_for_channels("std", task.std, form.channels),
        )

    def _form(self, task: ImageTask, architecture: Architecture) -> ImageForm:
        size = task.of_size(own_size(architecture.read, origin(architecture.model))).image_size
        assert size is not None
        return ImageForm(channels=channels_of(architecture.read), height=size, width=size)


def _for_channels(key: str, values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Returns a number for each channel.

    Raises:
        InputError: There are as many numbers as there are neither channels nor one.
    """
    if len(values) not in (1, channels):
        raise InputError(
            f"task.{key} must be one number, or one for each of the model's {channels} channels,"
            f" got {len(values)}."
        )
    return values * channels if len(values) == 1 else values


MODALITIES.register("image")(ImageModality())
