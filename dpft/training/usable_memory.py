"""How much of a device's memory training may plan with."""

import torch

from dpft.errors import InputError
from dpft.memory import machine_memory

SHARE = 0.5
"""The rest is for records, for other programs and for what the estimate misses: of a GPT-2 under
two_pass a token took 1.75 times what was estimated."""


def usable_memory(device: torch.device) -> int:
    """Returns the bytes of a device that a run may plan with: a share of all it has.

    What is free at the moment is never asked for: it depends on records that are in memory, and
    what is planned with it stands in public files.

    Raises:
        InputError: The device does not say how much memory it has.
    """
    if device.type == "cuda":
        memory: int | None = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = machine_memory() if device.type == "cpu" else None
    if memory is None:
        raise InputError(
            f"train.micro_batch_size=auto needs to know the memory of the device ({device.type}),"
            " which the system does not say; set a number, such as 32."
        )
    return int(SHARE * memory)
