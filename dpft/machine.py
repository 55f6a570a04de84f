"""Find out how much memory this process may use.

It is the process's own memory, or the limit of its container, never what is free at the moment:
records that are already in memory would change that, and public files show what follows from it.
"""

import ctypes
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
    """Return the bytes of a device that a run may plan with; None: the system does not say."""
    memory = None
    if device.type == "cpu":
        memory = machine_memory()
    elif device.type != "meta":
        from dpft.devices import total_memory

        memory = total_memory(device)
    return None if memory is None else int(USABLE * memory)


def machine_memory() -> int | None:
    """Return the bytes that this process may use, or None where the system does not say."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system knows the names
        return None
    places = [CGROUPS, *_control_groups()]
    texts = [_read(place / "memory.max") for place in places] + [_read(OF_VERSION_1)]
    limits = [int(text) for text in texts if text.isdigit() and int(text) > 0]
    return min([total, *limits]) if total > 0 else None


def return_freed_memory() -> None:
    """Give back what glibc keeps of freed blocks, where texts have made room for their tokens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def _control_groups() -> list[Path]:
    """Return the folders of the control group that the process is in and of the groups above."""
    for line in _read(OWN_CGROUP).splitlines():
        if line.startswith("0::/"):  # version 2's line
            group = CGROUPS / line.removeprefix("0::/")
            return [place for place in (group, *group.parents) if place.is_relative_to(CGROUPS)]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
