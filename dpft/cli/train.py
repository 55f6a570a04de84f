"""``dpft train``: fine-tunes, evaluates and reports; goes on with ``resume=RUN``."""

from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.overrides import (
    checked_overrides,
    is_on_command_line,
    job_overrides,
    overridden_keys,
    without_recipes_promise,
)
from dpft.config.keys import WITNESS
from dpft.config.load import load
from dpft.config.schema import POLYMORPHIC, TrainCommand
from dpft.runs import run as runs
from dpft.runs.resuming import resumed_configuration
from dpft.runs.witnessing import refuse_witness_of_file

CONFIG = TrainCommand
expand = checked_overrides

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def configuration(composed: DictConfig) -> TrainCommand:
    """Returns what Hydra composed, or with ``resume=RUN`` what that run was begun with.

    Raises:
        InputError: It is incomplete or wrong, or changes what a resumed run is bound to.
    """
    sections = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    refuse_witness_of_file(sections["privacy"], given=is_on_command_line(WITNESS))
    if composed.get("resume") is not None:
        values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
        return resumed_configuration(str(composed.resume), values, overridden_keys())
    settled = without_recipes_promise(composed, job_overrides())
    return load(settled, TrainCommand, polymorphic=POLYMORPHIC)


def run(command: TrainCommand) -> None:
    """Trains in the folder that Hydra made, or goes on in the one that ``resume`` names."""
    folder = run_folder() if command.resume is None else Path(command.resume)
    runs.run(command, folder, write_origin=write_hydra_record)
