"""What images a model sees: how large they may be, and how many channels they have."""

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto

from dpft.data.images.decoding import COLOR, GRAY, ImageForm
from dpft.errors import InputError
from dpft.models.source import TIMM

USUAL_SIZE = 224
"""Of models that take any size: what their checkpoints on ImageNet were trained at."""


def own_size(config: PretrainedConfig, place: str) -> int:
    """Returns the height and width that a model was made for.

    Args:
        config: Of the model.
        place: The model in the user's words.

    Raises:
        InputError: It is no classifier of images, or sees others than square ones.
    """
    if config.model_type not in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        raise InputError(
            f"task needs a classifier of images, got {place} of model type {config.model_type};"
            " choose one, such as model=vit-base."
        )
    _, sides = _made_for(config)
    if len(set(sides)) > 1:
        raise InputError(f"the model must see square images, got {place}, made for {[*sides]}.")
    return sides[0] if sides else USUAL_SIZE


def channels_of(config: PretrainedConfig) -> int:
    """Returns how many channels a model sees: 1, gray, or 3, color.

    Raises:
        InputError: It is another number.
    """
    channels, _ = _made_for(config)
    if channels not in (GRAY, COLOR):
        raise InputError(f"the model must see images of 1 or 3 channels, got {channels}.")
    return channels


def check_size(form: ImageForm, config: PretrainedConfig) -> None:
    """Refuses a size that the model cannot take.

    A model with positions takes the one that they are for; convolutions take any that is not
    smaller than what their strides make one number of.

    Raises:
        InputError: It is such a size.
    """
    _, sides = _made_for(config)
    has_positions = hasattr(config, "num_attention_heads") or hasattr(config, "num_heads")
    has_positions = has_positions or bool(_timm_checkpoint(config).get("fixed_input_size"))
    if has_positions and sides and form.height != sides[0]:
        raise InputError(
            f"task.image_size must be {sides[0]}, which the positions of the model are for, got"
            f" {form.height}; leave it out."
        )
    least = smallest_size(config)
    if form.height < least:
        raise InputError(
            f"task.image_size must be at least {least}, of which the model's strides leave one"
            f" number, got {form.height}; raise it, or choose a smaller model."
        )


def smallest_size(config: Any) -> int:
    """Returns the product of a model's strides; 1 where config.json does not say them."""
    if config.model_type == "convnext":
        return int(config.patch_size * 2 ** (len(config.hidden_sizes) - 1))
    if config.model_type == "resnet":
        first = 2 if config.downsample_in_first_stage else 1
        return int(4 * first * 2 ** (len(config.hidden_sizes) - 1))
    patch = getattr(config, "patch_size", 1)
    return int(patch if isinstance(patch, int) else max(patch))


def _made_for(config: Any) -> tuple[int, tuple[int, ...]]:
    """Returns channels, and height and width, of a model's images; no size where any will do."""
    channels, size = getattr(config, "num_channels", COLOR), getattr(config, "image_size", None)
    if config.model_type == TIMM:
        # What timm makes the model with goes before what its checkpoint was trained on.
        channels, *size = _timm_checkpoint(config).get("input_size") or [COLOR]
        told = config.model_args or {}
        channels, size = told.get("in_chans", channels), told.get("img_size", size)
    sides = size if isinstance(size, list | tuple) else [] if size is None else [size]
    return int(channels), tuple(int(side) for side in sides)


def _timm_checkpoint(config: Any) -> dict[str, Any]:
    """Returns what the config.json of a model of timm says of its checkpoint; of others nothing."""
    return getattr(config, "pretrained_cfg", None) or {}
