"""A run whose processes torchrun starts anew with the same words: it goes on."""

from dataclasses import replace
from pathlib import Path

from dpft.config.schema import TrainCommand
from dpft.parallel.processes import is_restarted, remember, remembered
from dpft.runs.folder import has_begun
from dpft.runs.resuming import resumed_configuration

FOLDER = "folder"
"""Name under which the agent keeps the run's folder."""


def folder_of_run(folder: Path) -> Path:
    """Returns the folder of the run that the processes are in, the same after a restart.

    Args:
        folder: What this process would call it; its name may be the time of the restart.
    """
    known = remembered(FOLDER) if is_restarted() else None
    if known is not None:
        return Path(known)
    remember(FOLDER, str(folder))
    return folder


def restarted_command(command: TrainCommand, folder: Path) -> TrainCommand:
    """Returns the command to carry out: to go on, where a restart finds that the run has begun.

    Args:
        command: As it was given, to begin a run or to go on with one.
        folder: The run's.

    Raises:
        InputError: As ``resumed_configuration``.
    """
    if command.resume is not None or not is_restarted() or not has_begun(folder):
        return command
    goes_on = resumed_configuration(str(folder), {}, ())
    return replace(goes_on, parallel=command.parallel)
