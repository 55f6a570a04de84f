"""Files that are whole or absent, folders that only their owner can read, and no symbolic links.

A run's folder may have been received from somebody, or be damaged: what is read here is refused in
one sentence where it is not what dpft wrote. Through a link in it a command would write to, delete
or open to others what lies elsewhere: ``model/x`` may stand for the owner's own key, and
``private/lock`` for a file that is not there yet. dpft makes no links and follows none, so a
command that writes into a run's folder looks for them first.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dpft.errors import InputError, StateError


def refuse_links(folder: Path) -> None:
    """Refuses the folder of a run with a symbolic link in it, before dpft writes there.

    The folder itself may be reached through links, as one on another disk is.

    Args:
        folder: The run's; it need not exist.

    Raises:
        InputError: There is one.
        OSError: A folder in it cannot be read.
    """
    for path in everything_below(folder):
        if path.is_symlink():
            raise InputError(
                f"{path} must be a file or a folder of its own, got a symbolic link, through which"
                " a command would reach outside the run's folder; remove it, and put in its place"
                " what belongs there."
            )


def everything_below(folder: Path) -> Iterator[Path]:
    """Yields what is in a folder and in the folders in it; a link, and not what it points to.

    What a run that goes on removes meanwhile is left out.
    """
    folders = [folder]
    while folders:
        try:
            entries = sorted(folders.pop().iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for path in entries:
            yield path
            if path.is_dir() and not path.is_symlink():
                folders.append(path)


SCHEMA_VERSION = 1
MOST_NESTED = 50
"""How deep lists and groups of keys may lie in each other in a saved YAML file; dpft needs few."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: parsing in Python was a thirteenth of a tiny run."""


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

    A library that writes through temporary files leaves them to their owner alone. What a symbolic
    link points to is left as it is.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in everything_below(folder):
        if path.is_file() and not path.is_symlink():
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
        content = json.loads(read_file(path), parse_int=_whole_number)
        version = content["schema_version"]
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged: it must hold one JSON object with a schema_version; put it back."
        ) from error
    check_version(version, path)
    return dict(content)


def read_file(path: Path) -> bytes:
    """Returns the content of a file; a folder in its place is a corrupted run.

    Raises:
        FileNotFoundError: It is not there.
        StateError: It is a folder.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise StateError(f"{path} must be a file, got a folder; put it back as it was.") from error


def read_yaml(path: Path) -> Any:
    """Returns the plain values of a YAML file that dpft wrote, such as a run's config.yaml.

    Texts stay as they are: OmegaConf's ``${...}`` is none of YAML's, and nothing resolves it.

    Raises:
        InputError: It cannot be read, or is such as dpft does not write.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _check_nesting(text)
        return yaml.safe_load(text)
    # PyYAML lets pass what its constructors raise of a text that is no number or date after all.
    except (OSError, ValueError, LookupError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read {path}: {reason}; put it back as it was.") from error


def _check_nesting(text: str) -> None:
    """Refuses YAML that nests too deeply, or has aliases, before values are made of it.

    By aliases a few lines stand for more values than memory holds, or for a list that holds itself.

    Raises:
        yaml.YAMLError: It does, or is no YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_NESTED:
            raise yaml.YAMLError(f"it nests more than {MOST_NESTED} lists and groups of keys")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*NAME), which dpft does not write")


def _whole_number(digits: str) -> int:
    """Returns the whole number that digits of JSON spell, if arithmetic on it is possible.

    Raises:
        ValueError: It has too many digits to be read.
        OverflowError: It is larger than any float, so that arithmetic on it would fail.
    """
    number = int(digits)
    float(number)
    return number


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
