"""What a device asks of those who give it work: how much at a time, and never to be waited for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CPU_BLOCK = 2**17
"""On a processor, few enough for its cache."""
DEVICE_BLOCK = 2**24
"""And on an accelerator, so many that launches do not count; 64 MB for each result."""


def numbers_at_a_time(device: torch.device) -> int:
    """Returns how many numbers to work on at a time on a device."""
    return CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK


def sent(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns numbers of the host as a tensor, without a wait for what the device is doing."""
    return moved(torch.tensor(numbers, dtype=dtype), device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host on a device, without a wait for what the device is doing."""
    if device.type == "cuda":
        # From other memory the copy would be waited for, and all work before it.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def is_same_tensor(kept: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers at the same place, one of them kept until now."""
    return (
        kept.data_ptr() == other.data_ptr()
        and kept.shape == other.shape
        and kept.stride() == other.stride()
        and kept.dtype == other.dtype
        and kept._version == other._version
    )
