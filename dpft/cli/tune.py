"""``dpft tune``: searches for the best settings within one epsilon; goes on with ``resume=RUN``."""

from pathlib import Path

from omegaconf import DictConfig

from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.overrides import (
    checked_overrides,
    job_overrides,
    overridden_keys,
    without_recipes_promise,
)
from dpft.config.load import load
from dpft.config.schema import POLYMORPHIC
from dpft.config.tune import TuneCommand
from dpft.errors import InputError
from dpft.runs.tuning import run_search
from dpft.runs.tuning.run_search import resumed_search

CONFIG = TuneCommand
expand = checked_overrides

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def configuration(composed: DictConfig) -> TuneCommand:
    """Returns what Hydra composed, or with ``resume=RUN`` what that search was begun with.

    Raises:
        InputError: It is incomplete or wrong, or ``resume`` comes with anything else.
    """
    if composed.get("resume") is None:
        settled = without_recipes_promise(composed, job_overrides())
        return load(settled, TuneCommand, polymorphic=POLYMORPHIC)
    others = sorted(set(overridden_keys()) - {"resume"})
    if others:
        raise InputError(
            f"dpft tune resume=RUN goes on as the search was begun, got {others[0]} too; drop it."
        )
    return resumed_search(str(composed.resume))


def run(command: TuneCommand) -> None:
    """Searches in the folder that Hydra made, or goes on in the one that ``resume`` names."""
    folder = run_folder() if command.resume is None else Path(command.resume)
    run_search.run(command, folder, write_origin=write_hydra_record)
