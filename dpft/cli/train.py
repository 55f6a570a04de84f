"""``dpft train``: fine-tunes, evaluates and reports; goes on with ``resume=RUN``."""

from pathlib import Path

from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.config.schema import POLYMORPHIC, TrainCommand
from dpft.runs.announcing import announce
from dpft.runs.configuring import train_configuration as configuration
from dpft.runs.overrides import checked_overrides as expand

CONFIG = TrainCommand

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def run(command: TrainCommand) -> None:
    """Trains in the folder that Hydra made, or goes on in the one that ``resume`` names."""
    announce(command)
    from dpft.runs import run as runs

    folder = run_folder() if command.resume is None else Path(command.resume)
    runs.run(command, folder, write_request=write_hydra_record)
