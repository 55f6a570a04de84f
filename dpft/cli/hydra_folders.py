"""Folders Hydra makes for runs: named so that no two runs share one, removed when left empty.

Hydra makes a run's folder before the run can check its configuration, so a refused run would leave
an empty folder behind. What stood before the command is never removed.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from dpft.cli.swept_jobs import forget_exit_codes
from dpft.run_folder import PRIVATE, SWEEP_RECORD

# Hydra builds its callbacks from the configuration, so they can hand over only through the module.
_new_roots: list[tuple[Path, Path]] = []
_sweeps: list[Path] = []


class RunFolders(Callback):
    """Hydra's callback that notes which folders a command is about to make."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folder of a single run."""
        note_root(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the folder of a sweep."""
        note_root(config.hydra.sweep.dir)
        _sweeps.append(Path(config.hydra.sweep.dir).absolute())


def note_root(folder: str) -> None:
    """Note a folder that does not exist yet and the uppermost of its parents that does not."""
    path = Path(folder).absolute()
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    if missing:
        _new_roots.append((path, missing[-1]))


def sweep_folder() -> Path | None:
    """Returns the folder of this command's sweep; None without a sweep."""
    return _sweeps[-1] if _sweeps else None


def remove_empty_folders(job_folders: Iterable[Path] = ()) -> None:
    """Remove the folders this command made and nothing was written into.

    Args:
        job_folders: Those of a sweep's jobs, in whatever process they ran.
    """
    folders_of_jobs = list(job_folders)
    for root, uppermost in _new_roots:
        for job_folder in folders_of_jobs:
            if job_folder.is_relative_to(root):
                _remove_if_empty(job_folder)
        if root.is_dir() and {entry.name for entry in root.iterdir()} <= {SWEEP_RECORD, PRIVATE}:
            forget_exit_codes(root)
            (root / SWEEP_RECORD).unlink(missing_ok=True)
        for folder in (root, *root.parents):
            if folder.is_relative_to(uppermost):
                _remove_if_empty(folder)
    _new_roots.clear()
    _sweeps.clear()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
