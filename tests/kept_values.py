"""Values that test workers keep in files: for each other, or beside the bytecode for next time."""

import hashlib
import os
import pickle
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import hydra
import omegaconf
import yaml

from dpft.config.load import config_directory


class KeptValues(dict[Any, Any]):
    """Values by key, those of the other test workers too, each in a file of its own."""

    def __init__(self, folder: Path, *kinds: type) -> None:
        """Takes the folder that all workers share, and of which types values are kept there."""
        super().__init__()
        self._folder, self._kinds = folder, kinds

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key):
            with suppress(FileNotFoundError):
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


def composition_folder(of_session: Path) -> Path:
    """Returns where is kept what Hydra makes of the shipped configuration as it is today.

    That is beside the bytecode, under a hash of every file of the configuration and of the
    libraries that compose it. What was made of others is removed. Where no bytecode is written,
    nothing outlives the session.
    """
    if sys.dont_write_bytecode:
        return of_session
    folder = Path(__file__).parent / "__pycache__" / f"compositions-{_hash_of_what_is_composed()}"
    for other in folder.parent.glob("compositions-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _hash_of_what_is_composed() -> str:
    plugins = find_spec("hydra_plugins")  # what brings launchers and their configurations along
    places = plugins.submodule_search_locations if plugins else []
    found = sorted(each.name for each in iter_modules(places))
    libraries = (sys.version, hydra.__version__, omegaconf.__version__, yaml.__version__, found)
    hashed = hashlib.sha256(repr(libraries).encode())
    root = config_directory()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        hashed.update(f"{path.relative_to(root)} {len(content)} ".encode() + content)
    return hashed.hexdigest()[:16]
