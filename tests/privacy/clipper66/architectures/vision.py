"""Image models beside those of ``zoo``: what they may be called with, drawn and asked for."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.models.batch_norm import replace_batch_norm, standardize_weights
from tests.privacy.clipper66.architectures.batches import CLASSES, SIDE, Examples, vision
from tests.privacy.clipper66.architectures.zoo import EVERY, IMAGE, IMAGES, LABELS, Case

STAGES = LABELS | {"depths": [1, 1], "hidden_sizes": [8, 12]}


def on_larger_images(model: nn.Module, batch: Examples) -> Tensor:
    """Losses where the position embeddings are interpolated to images of another size."""
    pixels = F.pad(batch.pixels, (0, SIDE // 2, 0, SIDE // 2), mode="reflect")
    pixels = pixels.to(next(model.parameters()).dtype)
    logits = model(pixel_values=pixels, interpolate_pos_encoding=True).logits
    return F.cross_entropy(logits, batch.classes, reduction="none") * batch.labeled


def of_several_labels(model: nn.Module, batch: Examples) -> Tensor:
    """Binary cross-entropy of each label, summed for each image (Bu et al. 2022: CelebA)."""
    dtype = next(model.parameters()).dtype
    logits = model(pixel_values=batch.pixels.to(dtype)).logits
    wanted = (batch.classes[:, None] >= torch.arange(CLASSES)).to(dtype)
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)
    return losses * batch.labeled


def on_gray_images(model: nn.Module, batch: Examples) -> Tensor:
    """Losses on one channel of 8 x 8, as of the digits."""
    pixels = batch.pixels[:, :1, ::2, ::2].to(next(model.parameters()).dtype)
    logits = model(pixel_values=pixels).logits
    return F.cross_entropy(logits, batch.classes, reduction="none") * batch.labeled


def _standardized(model: nn.Module) -> None:
    replace_batch_norm(model)
    standardize_weights(model)


VIT = EVERY["vit"]
POOLFORMER = Case(
    "PoolFormerConfig",
    IMAGES,
    vision,
    STAGES
    | {
        "num_encoder_blocks": 2,
        "patch_sizes": [3, 3],
        "strides": [2, 2],
        "padding": [1, 1],
        "drop_path_rate": 0.0,
        "layer_scale_init_value": 0.1,
    },
    (),
    ("eager",),
)
TEACHER = replace(EVERY["deit"], auto="DeiTForImageClassificationWithTeacher")
DROPS = {
    name: replace(EVERY[name], options=EVERY[name].options | {"drop_path_rate": 0.6}, dropout=())
    for name in ("beit", "beit-shared-bias", "convnext", "swin")
}
DROPS["poolformer"] = replace(POOLFORMER, options=POOLFORMER.options | {"drop_path_rate": 0.6})
LARGER = {name: replace(EVERY[name], kind=on_larger_images) for name in ("vit", "deit", "beit")}
SEVERAL = {
    name: replace(EVERY[name], kind=of_several_labels)
    for name in ("vit", "convnext", "resnet-group-norm")
}
BOTTLENECK = replace(
    EVERY["resnet-group-norm"],
    options=EVERY["resnet-group-norm"].options
    | {"layer_type": "bottleneck", "downsample_in_first_stage": False},
    adapt=_standardized,
)
GRAY = replace(
    VIT,
    kind=on_gray_images,
    options=IMAGE | LABELS | {"image_size": 8, "patch_size": 2, "num_channels": 1},
)
CASES = (
    {
        "poolformer": POOLFORMER,
        "deit-with-teacher": TEACHER,
        "resnet-standardized-bottleneck": BOTTLENECK,
    }
    | {f"{name}-larger-images": case for name, case in LARGER.items()}
    | {f"{name}-several-labels": case for name, case in SEVERAL.items()}
)
MODELS = {
    name: EVERY[name] for name in ("vit", "deit", "beit", "convnext", "swin", "resnet-group-norm")
} | {"poolformer": POOLFORMER}
