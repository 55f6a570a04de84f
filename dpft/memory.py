"""How much memory the machine has for one process: its own, or what a container's limit leaves.

Never what is free at the moment: records that are already in memory would change that, and what
follows from it stands in files that anybody may read.
"""

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
OF_VERSION_1 = CGROUPS / "memory" / "memory.limit_in_bytes"


def machine_memory() -> int | None:
    """Returns the bytes that this process may use, or None where the system does not say."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system knows the names
        return None
    return min([total, *_limits()]) if total > 0 else None


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
