"""Image models of published size on the meta device: transformers' own, and two families it lacks.

VGG and wide ResNets are in torchvision alone, which has no build for the torch that the tests run
with; their layers are few enough to be written out.
"""

from itertools import pairwise

import torch
import transformers as hf
from torch import nn

from tests.methods.shapes import LARGE

SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
BEIT = {
    "use_mask_token": False,
    "use_absolute_position_embeddings": False,
    "use_relative_position_bias": True,
    "use_mean_pooling": True,
}
BASIC = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
BASE_WIDTHS, LARGE_WIDTHS = [128, 256, 512, 1024], [192, 384, 768, 1536]
IN_TRANSFORMERS = {
    "resnet18": ("ResNetConfig", BASIC | {"depths": [2, 2, 2, 2]}),
    "resnet34": ("ResNetConfig", BASIC | {"depths": [3, 4, 6, 3]}),
    "resnet50": ("ResNetConfig", {"depths": [3, 4, 6, 3]}),
    "resnet101": ("ResNetConfig", {"depths": [3, 4, 23, 3]}),
    "resnet152": ("ResNetConfig", {"depths": [3, 8, 36, 3]}),
    "convnext_base": ("ConvNextConfig", {"depths": [3, 3, 27, 3], "hidden_sizes": BASE_WIDTHS}),
    "convnext_large": ("ConvNextConfig", {"depths": [3, 3, 27, 3], "hidden_sizes": LARGE_WIDTHS}),
    "vit_small": ("ViTConfig", SMALL),
    "vit_base": ("ViTConfig", {}),
    "vit_large": ("ViTConfig", LARGE),
    "beit_base": ("BeitConfig", BEIT),
    "beit_large": ("BeitConfig", BEIT | LARGE),
    # facebook/deit-base-patch16-224 is a ViT: only the distilled one has a second token.
    "deit_base": ("ViTConfig", {}),
}
VGG = {"vgg11": (1, 1, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
WIDE = {"wide_resnet50_2": (3, 4, 6, 3), "wide_resnet101_2": (3, 4, 23, 3)}


def image_model(name: str, classes: int) -> nn.Module:
    """A classifier of published size with a head of so many classes, without storage."""
    with torch.device("meta"):
        if name in VGG:
            return Written(vgg(VGG[name], classes))
        if name in WIDE:
            return Written(wide_resnet(WIDE[name], classes))
        kind, options = IN_TRANSFORMERS[name]
        config = getattr(hf, kind)(**options, num_labels=classes)
        return hf.AutoModelForImageClassification.from_config(config)


class Written(nn.Module):
    """Layers that are counted and never run, with a configuration as transformers' models have."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.config = hf.PretrainedConfig()


def vgg(depths: tuple[int, ...], classes: int) -> list[nn.Module]:
    """Simonyan and Zisserman 2015, without batch norm, for images of 224 x 224."""
    widths = [3]
    for depth, width in zip(depths, (64, 128, 256, 512, 512), strict=True):
        widths += [width] * depth
    convolutions = [nn.Conv2d(*pair, 3) for pair in pairwise(widths)]
    dense = [nn.Linear(*pair) for pair in pairwise((512 * 7 * 7, 4096, 4096, classes))]
    return [*convolutions, *dense]


def wide_resnet(depths: tuple[int, ...], classes: int) -> list[nn.Module]:
    """Zagoruyko and Komodakis 2016: a ResNet whose bottlenecks are twice as wide."""
    layers: list[nn.Module] = [*_normalized(3, 64, 7)]
    inputs = 64
    for depth, planes in zip(depths, (64, 128, 256, 512), strict=True):
        inner, outputs = 2 * planes, 4 * planes
        for block in range(depth):
            layers += [*_normalized(inputs, inner, 1), *_normalized(inner, inner, 3)]
            layers += _normalized(inner, outputs, 1)
            if block == 0:
                layers += _normalized(inputs, outputs, 1)
            inputs = outputs
    return [*layers, nn.Linear(inputs, classes)]


def _normalized(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, bias=False), nn.BatchNorm2d(outputs)]
