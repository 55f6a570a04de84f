"""Values that test workers keep in files: for each other, or beside the bytecode for next time."""

import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class KeptValues(dict[Any, Any]):
    """Values by key, those of the other test workers too, each in a file of its own."""

    def __init__(self, folder: Path, *kinds: type) -> None:
        """Take the folder that all workers share, and of which types values are kept there."""
        super().__init__()
        self._folder, self._kinds = folder, kinds

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key):
            with suppress(FileNotFoundError, EOFError, pickle.UnpicklingError):
                super().__setitem__(key, pickle.loads(self._file(key).read_bytes()))
        return super().__contains__(key)

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, value)
        if isinstance(value, self._kinds):
            # Whole at once: another worker may look for it at this moment.
            made = self._folder / f"made-{os.getpid()}"
            made.write_bytes(pickle.dumps(value))
            made.replace(self._file(key))

    def _file(self, key: object) -> Path:
        return self._folder / f"kept-{hashlib.sha256(repr(key).encode()).hexdigest()}"


def lasting_folder(name: str, of_session: Path, sources: Iterable[Path], *libraries: str) -> Path:
    """Return a folder for what comes of sources and libraries as they are today.

    It is beside the bytecode, under a hash of every file of the sources and of the libraries'
    versions; what came of others is removed. Where no bytecode is written, nothing outlives the
    session.

    Args:
        name: What is kept.
        of_session: The folder to return where nothing may outlive the session.
        sources: Folders.
        libraries: Modules and packages, by the names under which they are imported.
    """
    if sys.dont_write_bytecode:
        return of_session
    hashed = hashlib.sha256(repr((sys.version, [*map(_as_it_is, libraries)])).encode())
    for source in sources:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            if path.suffix != ".pyc":
                content = path.read_bytes()
                hashed.update(f"{path.relative_to(source)} {len(content)} ".encode() + content)
    folder = Path(__file__).parent / "__pycache__" / f"{name}-{hashed.hexdigest()[:16]}"
    for other in folder.parent.glob(f"{name}-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _as_it_is(library: str) -> str:
    """Return what is installed of a library: the names and times of what its folder holds.

    To look its version up in the metadata of all that is installed takes a quarter of a second.
    """
    found = find_spec(library)
    if found is None:
        return f"{library} is not there"
    places = found.submodule_search_locations or [str(found.origin)]
    files = [path for place in places for path in sorted(Path(place).glob("[!_]*"))]
    files += [path for place in places for path in Path(place).glob("__init__.py")]
    return f"{library} {[(path.name, path.stat().st_mtime_ns) for path in files]}"
