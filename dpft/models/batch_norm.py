"""Replace BatchNorm by GroupNorm, and standardize convolutions, to train a model per example.

BatchNorm normalizes an example by the others of its batch, so no example has a gradient of its own
(docs/dev/design.md, rule 3). GroupNorm normalizes each by itself (Wu and He 2018, arXiv
1803.08494). This is a change of the model, not of its training: a checkpoint's weights and biases
are kept, its running statistics are dropped, and it answers otherwise until it has trained. Bu et
al. 2022 do the same by Opacus; De et al. 2022 (arXiv 2204.13650) standardize the convolutions'
weights as well.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from dpft.errors import InputError
from dpft.independence_check import StandardizedConv2d

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
GROUPS = 32
"""Most groups that a GroupNorm gets: what Wu and He 2018 found best, and Opacus takes."""

NewModule = TypeVar("NewModule", bound=nn.Module)


def replace_batch_norm(model: nn.Module) -> tuple[str, ...]:
    """Put a GroupNorm in the place of each BatchNorm; return their names, in the model's order.

    Args:
        model: Changed in place. Its parameters keep their names and are the same tensors, on
            whatever device they are, so that a checkpoint's weights can be read before or after.

    Raises:
        InputError: One of them is not torch's own.

    Guarantees:
        What is left of the batch norms normalizes each example by itself; an empty tuple says that
        there were none, and that nothing was changed.
    """
    return _replace(model, BATCH_NORMS, group_norm_like)


def standardize_weights(model: nn.Module) -> tuple[str, ...]:
    """Give each Conv2d standardized weights; return the convolutions' names, in order.

    Left as they are: one whose filters hold a single number, which would be zero, and what is no
    plain ``nn.Conv2d``.
    """
    return _replace(model, (nn.Conv2d,), _standardized)


def group_norm_like(norm: nn.Module) -> nn.GroupNorm:
    """Return a GroupNorm with a BatchNorm's weight and bias, if it has them.

    Raises:
        InputError: It is a BatchNorm that does more, such as timm's with an activation inside.
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
    """Return into how many groups channels go: the largest divisor that is at most 32.

    Up to 32 channels each is a group of its own, which says nothing where an image is down to one
    pixel: torch refuses to normalize that of one image alone.

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
    """Put what ``make`` returns in the place of each module of some kinds; returns their names.

    A module that stands in several places is replaced in all of them by one.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, kinds)}
    replacements = {module: make(module) for module in names}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])
    return tuple(name for module, name in names.items() if replacements[module] is not module)
