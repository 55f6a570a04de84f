"""What Hydra needs to compose dpft's configurations, in whatever program dpft runs."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from dpft.config.location import config_directory

_COMPOSING = RLock()
"""Hydra has one state a process, which two threads must not change at once."""


@contextmanager
def hydra_of_our_own() -> Iterator[None]:
    """Sets Hydra up for dpft's configurations inside the block; a caller's own setup comes back."""
    with _COMPOSING:
        state = GlobalHydra.instance()
        before = state.hydra
        state.clear()
        try:
            with initialize_config_dir(str(config_directory()), version_base="1.3"):
                yield
        finally:
            GlobalHydra.set_instance(state)
            state.hydra = before


def unused_folder(path: str) -> str:
    """Returns ``path``, or ``path-2``, ``path-3``, … : the first that does not exist yet.

    The time in a folder's name has a resolution of one second; runs may start closer together.
    """
    candidates = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not Path(candidate).exists())


def register_resolver() -> None:
    """Make ``${unused_folder:PATH}`` known to OmegaConf; one configuration gets one answer."""
    OmegaConf.register_new_resolver("unused_folder", unused_folder, use_cache=True, replace=True)
