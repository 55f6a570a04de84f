"""The memory that this process may use.

The functions return the total memory of the machine or the limit of its container, and never the
memory that is currently free. The free memory depends on records that are already loaded, and
public files contain values that are derived from these results.
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
"""Share of a device's memory that training plans to use. The rest is for records, for other
programs, and for errors of up to 15 % in the estimate (benchmarks/run_memory.py)."""


def usable_memory(device: "torch.device") -> int | None:
    """Return the bytes of a device that a run may plan to use; None if unknown."""
    memory = None
    if device.type == "cpu":
        memory = machine_memory()
    elif device.type != "meta":
        from dpft.devices import total_memory

        memory = total_memory(device)
    return None if memory is None else int(USABLE * memory)


def machine_memory() -> int | None:
    """Return the bytes that this process may use, or None if the system does not report them."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Some systems do not define these names.
        return None
    places = [CGROUPS, *_control_groups()]
    texts = [_read(place / "memory.max") for place in places] + [_read(OF_VERSION_1)]
    limits = [int(text) for text in texts if text.isdigit() and int(text) > 0]
    return min([total, *limits]) if total > 0 else None


def return_freed_memory() -> None:
    """Return freed blocks that glibc keeps to the system, after tokens have replaced texts."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # exists only in glibc
    if trim is not None:
        trim(0)


def _control_groups() -> list[Path]:
    """Return the folders of the control group of this process, and of its parent groups."""
    for line in _read(OWN_CGROUP).splitlines():
        if line.startswith("0::/"):  # cgroup version 2
            group = CGROUPS / line.removeprefix("0::/")
            return [place for place in (group, *group.parents) if place.is_relative_to(CGROUPS)]
    return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
