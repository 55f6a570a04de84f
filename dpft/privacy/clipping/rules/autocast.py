"""What autocast does inside a layer's own ``forward``, for the Functions that take its place.

Autocast looks at torch's functions, and does not reach into a ``torch.autograd.Function``'s
backward pass. So the rules cast by hand: products in the autocast dtype, as ``F.linear`` would;
normalization in float32 where autocast does it so. Parameters stay float32 and are cast anew in
the backward pass, which costs less than keeping the copy.
"""

import torch
from torch import Tensor


def for_product(inputs: Tensor) -> Tensor:
    """Returns the inputs of a matrix product as autocast would cast them."""
    device = inputs.device.type
    if not torch.is_autocast_enabled(device) or inputs.dtype == torch.float64:
        return inputs
    return inputs.to(torch.get_autocast_dtype(device))


def for_normalization(inputs: Tensor) -> Tensor:
    """Returns the inputs of a normalization as autocast would: float32, but on the CPU as is."""
    device = inputs.device.type
    if device == "cpu" or not torch.is_autocast_enabled(device):
        return inputs
    return inputs.to(torch.promote_types(inputs.dtype, torch.float32))


def sum_dtype(gradients: Tensor) -> torch.dtype:
    """Returns the dtype to add gradients up in, float32 or better."""
    return torch.float64 if gradients.dtype == torch.float64 else torch.float32
