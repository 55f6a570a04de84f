"""``dpft tune``: searches for the best settings within one epsilon; goes on with ``resume=RUN``."""

from pathlib import Path

from dpft.cli.subcommand import run_folder, write_hydra_record
from dpft.config.schema import POLYMORPHIC
from dpft.config.tune import TuneCommand
from dpft.runs.configuring import checked_overrides as expand
from dpft.runs.configuring import tune_configuration as configuration
from dpft.runs.run_plan import announce
from dpft.runs.saved_run import saved_run

CONFIG = TuneCommand

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def run(command: TuneCommand) -> None:
    """Searches in the folder that Hydra made, or goes on in the one that ``resume`` names."""
    announce(command)
    from dpft.runs import tuning
    from dpft.runs.ending import show_ending

    folder = run_folder() if command.resume is None else Path(command.resume)
    tuning.run(command, folder, write_request=write_hydra_record)
    show_ending(folder, saved_run(str(folder)).task)
