"""How many numbers are worked on at a time: few enough for a cache, or enough for a launch."""

import torch

CPU_BLOCK = 2**17
"""On a processor, few enough for its cache."""
DEVICE_BLOCK = 2**24
"""And on an accelerator, so many that launches do not count; 64 MB for each result."""


def numbers_at_a_time(device: torch.device) -> int:
    """Returns how many numbers to work on at a time on a device."""
    return CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
