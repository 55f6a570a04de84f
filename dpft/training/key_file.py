"""The file of a checkpoint's secret keys, which knows whether it is still the one that was written.

A run that goes on with its keys draws the noise it would have drawn. Two folders that both do so,
a run and its copy, would put one noise on two sums. So the file records the file system and the
number (inode) that it has there, and the checkpoint, which is written after it, the moment of its
last change (ctime). A copy has another inode. A restored backup may have the old one again, since
file systems give numbers out anew, or be written over the old file: but no program can set a
ctime back. A second name for the file (a hard link) is no original either. Moving a folder within a
file system changes nothing. A rolled-back disk image or virtual machine cannot be told.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.files import SCHEMA_VERSION, check_version

_PLACE = "file"


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """What a key file says."""

    content: Mapping[str, Any]
    """What was written; secret."""
    original: bool
    """Whether it is the file that was written, and no copy of it."""


def write_key_file(path: Path, content: Mapping[str, Any]) -> int:
    """Writes a new file, for its owner alone, and waits until it is on disk.

    Returns:
        When it was last changed, for ``read_key_file``, in nanoseconds.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        place = _place(os.fstat(file.fileno()))
        whole = {"schema_version": SCHEMA_VERSION, _PLACE: place, **content}
        file.write(json.dumps(whole, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_ctime_ns


def read_key_file(path: Path, *, changed: int) -> KeyFile:
    """Returns what ``write_key_file`` wrote; the file must be whole.

    Args:
        path: The file.
        changed: What ``write_key_file`` returned.

    Raises:
        InputError: It is of another schema version.
    """
    with path.open(encoding="utf-8") as file:
        written = dict(json.load(file))
        status = os.fstat(file.fileno())
    check_version(written.pop("schema_version"), path)
    in_place = written.pop(_PLACE, None) == _place(status)
    untouched = status.st_ctime_ns == changed and status.st_nlink == 1
    return KeyFile(content=written, original=in_place and untouched)


def _place(status: os.stat_result) -> dict[str, int]:
    return {"device": status.st_dev, "inode": status.st_ino}
