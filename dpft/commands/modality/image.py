"""The image modality: image processors, sizes, and heads of image classifiers.

The model determines the size and the number of channels of its images. The preprocessing that comes
with its checkpoint, in the format of Transformers, determines how pixels are scaled.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto

from dpft.commands.modality import MODALITIES, Modality
from dpft.constants import ATTRIBUTES, CLASSES, IMAGE_CLASSIFIER, Head
from dpft.data.encoding import Encoding
from dpft.data.images import ImageEncoding, ImageLayout, check_pillow
from dpft.data.pixels import COLOR, GRAY, ImageForm
from dpft.errors import InputError
from dpft.models.architecture import Architecture
from dpft.models.source import TIMM, origin
from dpft.run_folder import write_json
from dpft.tasks.images import ImageTask

PREPROCESSOR = "preprocessor_config.json"
BILINEAR = 2
"""Pillow's code for bilinear resampling."""


class ImageProcessing:
    """Preprocessing of images, which can be saved like an image processor of Transformers."""

    def __init__(self, values: dict[str, Any]) -> None:
        """Store the values of preprocessor_config.json."""
        self.values = values

    def save_pretrained(self, folder: str | Path) -> None:
        """Write preprocessor_config.json, which ``AutoImageProcessor`` reads."""
        write_json(Path(folder) / PREPROCESSOR, self.values)


USUAL_SIZE = 224
"""Default size for models that accept any size: the training size of their ImageNet checkpoints."""


def own_size(config: PretrainedConfig, place: str) -> int:
    """Return the height and width that a model was made for.

    Args:
        config: The configuration of the model.
        place: A description of the model for messages.

    Raises:
        InputError: The model is not an image classifier, or its images are not square.
    """
    if config.model_type not in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        raise InputError(
            f"The task needs an image classifier, but {place} has model type {config.model_type}.",
            key="model",
            value=config.model_type,
            hint="model=vit-base",
        )
    _, sides = _made_for(config)
    if len(set(sides)) > 1:
        raise InputError(
            f"The model must take square images, but {place} takes images of size {[*sides]}.",
            key="model",
            value=sides,
        )
    return sides[0] if sides else USUAL_SIZE


def smallest_size(config: Any) -> int:
    """Return the smallest supported image size: the product of a model's strides.

    The size is 1 if config.json does not contain the strides.
    """
    if config.model_type == "convnext":
        return int(config.patch_size * 2 ** (len(config.hidden_sizes) - 1))
    if config.model_type == "resnet":
        first = 2 if config.downsample_in_first_stage else 1
        return int(4 * first * 2 ** (len(config.hidden_sizes) - 1))
    patch = getattr(config, "patch_size", 1)
    return int(patch if isinstance(patch, int) else max(patch))


def _made_for(config: Any) -> tuple[int, tuple[int, ...]]:
    """Return the number of channels, and height and width if the model supports only one size."""
    channels, size = getattr(config, "num_channels", COLOR), getattr(config, "image_size", None)
    if config.model_type == TIMM:
        # Arguments of timm's model constructor override the settings of the checkpoint.
        channels, *size = _timm_checkpoint(config).get("input_size") or [COLOR]
        told = config.model_args or {}
        channels, size = told.get("in_chans", channels), told.get("img_size", size)
    sides = size if isinstance(size, list | tuple) else [] if size is None else [size]
    return int(channels), tuple(int(side) for side in sides)


def _timm_checkpoint(config: Any) -> dict[str, Any]:
    """Return the checkpoint settings in the config.json of a timm model; empty for other models."""
    return getattr(config, "pretrained_cfg", None) or {}


class ImageModality(Modality):
    """Images of one size, for classifiers."""

    def head(self, task: ImageTask, architecture: Architecture) -> Head:
        """See ``Modality.head``: one output for each class or attribute."""
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
        """See ``Modality.check_fit``: reject sizes that the model does not support."""
        check_pillow()
        # Position embeddings support only one image size. Convolutions accept any size that their
        # strides do not reduce to nothing.
        form, config = self._form(task, architecture), architecture.read
        _, sides = _made_for(config)
        has_positions = hasattr(config, "num_attention_heads") or hasattr(config, "num_heads")
        has_positions = has_positions or bool(_timm_checkpoint(config).get("fixed_input_size"))
        if has_positions and sides and form.height != sides[0]:
            raise InputError(
                f"task.image_size must be {sides[0]}, the size that the model's positions are for,"
                f" got {form.height}. Remove the key.",
                key="task.image_size",
                value=form.height,
            )
        least = smallest_size(config)
        if form.height < least:
            raise InputError(
                f"task.image_size must be at least {least}, the product of the model's strides, got"
                f" {form.height}. Raise it, or choose a smaller model.",
                key="task.image_size",
                value=form.height,
                hint=f"task.image_size={least}",
            )

    def processor(
        self,
        task: ImageTask,
        architecture: Architecture,
        head: Head,
        *,
        folder: Path | None = None,
        tokens: tuple[str, ...] = (),
    ) -> Any:
        """See ``Modality.processor``: the processing of an image, in the format of Transformers."""
        layout = self._planned(task, architecture, head)
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
        channels, _ = _made_for(architecture.read)
        if channels not in (GRAY, COLOR):
            raise InputError(
                f"The model must take images with 1 or 3 channels, got {channels}.",
                key="model",
                value=channels,
            )
        return ImageForm(channels=channels, height=size, width=size)


def _for_channels(key: str, values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return one number for each channel.

    Raises:
        InputError: The number of values is neither 1 nor the number of channels.
    """
    if len(values) not in (1, channels):
        raise InputError(
            f"task.{key} must be one number, or one for each of the model's {channels} channels,"
            f" got {len(values)}.",
            key=f"task.{key}",
            value=values,
        )
    return values * channels if len(values) == 1 else values


MODALITIES.register("image")(ImageModality())
