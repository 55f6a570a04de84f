"""The Gaussian noise of a step."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dpft.privacy.randomness import NormalStream

NOISE_SOURCE = "float32 pseudo-random; not proof against attacks on low-order bits"


def add_noise(parameters: Iterable[nn.Parameter], noise_std: float, stream: NormalStream) -> None:
    """Adds N(0, noise_std^2) to every coordinate of every ``grad``, made if it is None.

    Args:
        parameters: All trainable parameters; one without a gradient gets noise alone.
        noise_std: noise_multiplier times the sensitivity of the sum.
        stream: Where the noise comes from.

    Guarantees:
        Coordinates get independent draws; noise is float32 (float64 for float64 parameters)
        whatever precision the model computed in.
    """
    for parameter in parameters:
        noise = stream.draw(parameter.shape, _noise_dtype(parameter)).mul_(noise_std)
        if parameter.grad is None:
            parameter.grad = noise
        else:
            parameter.grad.add_(noise)


def _noise_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
