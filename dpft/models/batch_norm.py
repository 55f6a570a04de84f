"""Replacement of BatchNorm by GroupNorm, and standardized convolutions, for per-example gradients.

BatchNorm normalizes each example with statistics of its whole batch, so no example has a gradient
of its own (docs/dev/design.md, rule 3). GroupNorm normalizes each example separately (Wu and He
2018, arXiv 1803.08494). The weights and biases of a checkpoint are kept, but its running statistics
are dropped. The model therefore gives different outputs until it has been trained. Bu et al. 2022
do the same with Opacus. De et al. 2022 (arXiv 2204.13650) also standardize the weights of the
convolutions.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from dpft.errors import InputError
from dpft.independence_check import StandardizedConv2d

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
GROUPS = 32
"""Maximum number of groups of a GroupNorm: the best number of Wu and He 2018, which Opacus uses
too."""

NewModule = TypeVar("NewModule", bound=nn.Module)


def replace_batch_norm(model: nn.Module) -> tuple[str, ...]:
    """Replace each BatchNorm by a GroupNorm; return their names, in the model's order.

    Args:
        model: Model that is changed in place. Its parameters keep their names and are the same
            tensors, on any device, so that a checkpoint's weights can be read before or after.

    Raises:
        InputError: A BatchNorm is not a class of torch itself.

    Guarantees:
        Each layer that replaces a BatchNorm normalizes each example by itself. An empty tuple means
        that the model has no BatchNorm and was not changed.
    """
    return _replace(model, BATCH_NORMS, group_norm_like)


def standardize_weights(model: nn.Module) -> tuple[str, ...]:
    """Give each Conv2d standardized weights; return the names of the convolutions, in order.

    Convolutions whose filters have a single number are not changed, because standardization would
    set that number to zero. Layers of any class but plain ``nn.Conv2d`` are not changed either.
    """
    return _replace(model, (nn.Conv2d,), _standardized)


def group_norm_like(norm: nn.Module) -> nn.GroupNorm:
    """Return a GroupNorm with a BatchNorm's weight and bias, if it has them.

    Raises:
        InputError: The BatchNorm does more than normalize, such as timm's with an activation
            inside.
    """
    assert isinstance(norm, BATCH_NORMS)
    if type(norm) not in BATCH_NORMS:
        raise InputError(
            "`dpft.models.batch_norm.replace_batch_norm(model)` needs plain BatchNorm, got"
            f" {type(norm).__name__}, which does more than normalize. Choose another model.",
            key="model",
        )
    channels = norm.num_features
    group_norm = nn.GroupNorm(
        group_count(channels), channels, eps=norm.eps, affine=norm.affine, device="meta"
    )
    return _with_parameters_of(norm, group_norm)


def group_count(channels: int) -> int:
    """Return the number of groups for a number of channels: its largest divisor that is at most 32.

    With up to 32 channels, each channel is a group. If an image is reduced to one pixel, such a
    group has a single value and carries no information. torch rejects the normalization of one such
    image.

    >>> [group_count(channels) for channels in (64, 48, 8, 7, 37)]
    [32, 24, 8, 7, 1]
    """
    return max(n for n in range(1, min(GROUPS, channels) + 1) if channels % n == 0)


def _standardized(convolution: nn.Module) -> nn.Module:
    assert isinstance(convolution, nn.Conv2d)
    if type(convolution) is not nn.Conv2d or convolution.weight[0].numel() == 1:
        return convolution
    standardized = StandardizedConv2d(
        convolution.in_channels,
        convolution.out_channels,
        convolution.kernel_size,  # type: ignore[arg-type]
        convolution.stride,  # type: ignore[arg-type]
        convolution.padding,  # type: ignore[arg-type]
        convolution.dilation,  # type: ignore[arg-type]
        convolution.groups,
        bias=convolution.bias is not None,
        padding_mode=convolution.padding_mode,
        device="meta",
    )
    return _with_parameters_of(convolution, standardized)


def _with_parameters_of(old: nn.Module, new: NewModule) -> NewModule:
    for name, parameter in old.named_parameters(recurse=False):
        setattr(new, name, parameter)
    return new.train(old.training)


def _replace(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], make: Callable[[nn.Module], nn.Module]
) -> tuple[str, ...]:
    """Replace each module of some kinds by the result of ``make``; return the names that changed.

    A module that occurs in several places is replaced by the same new module in all of them.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, kinds)}
    replacements = {module: make(module) for module in names}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])
    return tuple(name for module, name in names.items() if replacements[module] is not module)
