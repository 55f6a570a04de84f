"""Files that are either whole or absent, and folders that only their owner can read."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpft.errors import InputError, StateError

SCHEMA_VERSION = 1


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Writes ``text`` under a temporary name, syncs it to disk and renames it into place."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Writes ``content`` as ``write_text`` does."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)  # One left by a crash would keep its own mode.
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names in ``folder`` are on disk, so that a new file survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Waits until everything in ``folder``, which a library wrote, is on disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent):
        sync_folder(path)


def share(folder: Path) -> None:
    """Gives the files in ``folder`` the mode that a new file has.

    A library that writes through temporary files leaves them to their owner alone.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def write_json(path: Path, content: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Writes one JSON object with sorted keys and the schema version."""
    versioned = {"schema_version": SCHEMA_VERSION, **content}
    write_text(path, json.dumps(versioned, indent=2, sort_keys=True) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any]:
    """Returns what ``write_json`` wrote, the schema version included.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    try:
        content = json.loads(path.read_bytes())
        version = content["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged: it must hold one JSON object with a schema_version; put it back."
        ) from error
    check_version(version, path)
    return dict(content)


def check_version(version: object, path: Path) -> None:
    """Refuses a file that another dpft wrote in a form that this one does not know.

    Raises:
        InputError: It is of another schema version.
    """
    if version is True or version != SCHEMA_VERSION:
        raise InputError(
            f"{path} must be of schema_version {SCHEMA_VERSION}, got {version!r}; use the dpft that"
            " wrote it, or put the file back if it was changed."
        )


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, mode: int = 0o644) -> None:
    """Writes one JSON object a line, keys sorted."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    write_text(path, "".join(lines), mode=mode)


def private_folder(run: Path) -> Path:
    """Returns the run's ``private`` folder, made if need be; mode 0700, never to be released."""
    folder = run / "private"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


def check_writable(folder: Path) -> None:
    """Refuses a folder that cannot be written to, or made, before work is put into it.

    Raises:
        OSError: It says why.
    """
    above = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    with tempfile.TemporaryFile(dir=above):
        return


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Holds a file lock, so that two processes never write one run's folder.

    Raises:
        InputError: Another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"{path.parent.parent} is in use by another dpft process; wait for it to end, or "
            "choose another folder with hydra.run.dir=DIR."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
