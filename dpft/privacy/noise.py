"""The Gaussian noise of a step."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dpft.privacy.randomness import NormalStream
from dpft.privacy.secure_noise import SecureNormalStream

NOISE_SOURCE = "float32 pseudo-random; not proof against attacks on low-order bits"
Stream = NormalStream | SecureNormalStream
BLOCK = 2**20
"""Numbers drawn at a time; few enough to stay in a processor's cache."""


def add_noise(
    parameters: Iterable[nn.Parameter], noise_std: float, stream: NormalStream | SecureNormalStream
) -> None:
    """Adds N(0, noise_std^2) to every coordinate of every ``grad``, made if it is None.

    Args:
        parameters: All trainable parameters; one without a gradient gets noise alone.
        noise_std: noise_multiplier times the sensitivity of the sum.
        stream: Where the noise comes from.

    Guarantees:
        Coordinates get independent draws; noise is float32 (float64 for float64 parameters and
        for a secure stream, whose sum is rounded once) whatever precision the model computed in.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dtype = _noise_dtype(parameter)
        for block in _blocks(parameter.grad):
            block.add_(stream.draw(block.shape, dtype).mul_(noise_std))


def _blocks(gradient: Tensor) -> tuple[Tensor, ...]:
    """Returns views that cover a gradient, so that noise needs no second copy of it."""
    if gradient.is_contiguous():
        return gradient.view(-1).split(BLOCK)
    return (gradient,)


def _noise_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
