"""A run whose processes are started anew with the same words, by torchrun or Slurm: it goes on.

torchrun's agent keeps a word for the processes that it restarts: which folder the run is in.
Whoever reaches the agent's port can write there, without a password. So the word is believed only
where it leads to a folder of this user's, and a run is gone on with only if it was begun by the
very same words.

A job that Slurm requeues keeps its name and its folder: its run goes on where a job of that name
began it, in a folder of this user's, by the very same words. A second start by hand has another
name, or none.
"""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from dpft.config.keys import plain
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.errors import InputError
from dpft.parallel.processes import is_restarted, remember, remembered
from dpft.parallel.submitted import submitted_job
from dpft.runs.begun import asked_for, job_of
from dpft.runs.folder import has_begun
from dpft.runs.resuming import resumed_configuration

FOLDER = "folder"
"""Name under which the agent keeps the run's folder."""


def keep_folder(folder: Path) -> None:
    """Tells torchrun's agent, for a restart, where a run that begins has its folder."""
    remember(FOLDER, str(folder.absolute()))


def folder_of_run(command: TrainCommand, folder: Path) -> Path:
    """Returns the folder of the run that the processes are in, the same after a restart.

    Args:
        command: As it was given.
        folder: What this process would call it; its name may be the time of the restart.

    Raises:
        InputError: The run has begun in a folder that is not there, or not this user's.
    """
    known = remembered(FOLDER) if command.resume is None and is_restarted() else None
    if known is None:
        return folder
    path = Path(known)
    if not path.is_dir() or path.stat().st_uid != os.getuid():
        raise InputError(
            f"the run that torchrun starts anew must have its folder here, and {path} is not one of"
            " yours; put it where the first process runs, or on a disk that all machines share."
        )
    return path


def restarted_command(command: TrainCommand, folder: Path) -> TrainCommand:
    """Returns the command to carry out: to go on, where a restart finds that the run has begun.

    Args:
        command: As it was given, to begin a run or to go on with one.
        folder: The run's.

    Raises:
        InputError: As ``resumed_configuration``, or the run there was begun by other words.
    """
    if command.resume is not None or not has_begun(folder):
        return command
    if not is_restarted() and not is_requeued(folder):
        return command
    if asked_for(folder) != digest_of(command.settings()):
        raise InputError(
            f"the run that is started anew must be the one in {folder}, which was begun by"
            " other words; start it by its own words, or go on with it by resume=RUN."
        )
    goes_on = resumed_configuration(str(folder), {}, ())
    return replace(goes_on, parallel=command.parallel)


def is_requeued(folder: Path) -> bool:
    """Returns whether the job that this process is in has begun the run in a folder before."""
    job = submitted_job()
    return job is not None and folder.stat().st_uid == os.getuid() and job_of(folder) == job


def digest_of(config: TrainConfig) -> str:
    """Returns what tells a configuration from any other, as it was asked for."""
    words = json.dumps(plain(config), sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()
