"""What the machine has: memory for one process, and the Hugging Face hub.

Memory is the process's own, or what a container's limit leaves, never what is free at the moment:
records that are already in memory would change that, and what follows from it stands in files that
anybody may read. The hub is asked one quick question before a library asks at length: without a
network libraries retry every file for 23 seconds, and an error that takes a minute reads like a
hang.
"""

import ctypes
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
OF_VERSION_1 = CGROUPS / "memory" / "memory.limit_in_bytes"
USABLE = 0.75
"""Of a device's memory, what training plans with; the rest is for records, for other programs and
for what the plan misses, up to 15 % (benchmarks/run_memory.py)."""


def usable_memory(device: "torch.device") -> int | None:
    """Returns the bytes of a device that a run may plan with; None: the system does not say."""
    memory = None
    if device.type == "cpu":
        memory = machine_memory()
    elif device.type != "meta":
        from dpft.devices import total_memory

        memory = total_memory(device)
    return None if memory is None else int(USABLE * memory)


def machine_memory() -> int | None:
    """Returns the bytes that this process may use, or None where the system does not say."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system knows the names
        return None
    return min([total, *_limits()]) if total > 0 else None


def return_freed_memory() -> None:
    """Gives back what glibc keeps of freed blocks, where texts have made room for their tokens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _limits() -> list[int]:
    """Returns the limits of the control groups that the process is in, outer ones too."""
    places = [CGROUPS, *_own_groups()]
    texts = [_read(place / "memory.max") for place in places] + [_read(OF_VERSION_1)]
    return [int(text) for text in texts if text.isdigit() and int(text) > 0]


def _own_groups() -> list[Path]:
    for line in _read(OWN_CGROUP).splitlines():
        if line.startswith("0::/"):  # version 2's line
            own = CGROUPS / line.removeprefix("0::/")
            return [place for place in (own, *own.parents) if place.is_relative_to(CGROUPS)]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


TIMEOUT_SECONDS = 5


@functools.cache
def hub_is_reachable() -> bool:
    """Says whether the hub answers; False at once where ``HF_HUB_OFFLINE=1`` is set."""
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # it answers; the library will say what it objects to
    except (OSError, ValueError):
        return False
    return True
