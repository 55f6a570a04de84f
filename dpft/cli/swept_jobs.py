"""How the jobs of a sweep ended, told on disk: a launcher may run them in other processes.

Each job writes its exit code into ``private/exit_codes`` of the sweep's folder, and the command
that started the sweep reads them when the launcher has returned.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from dpft.errors import InputError, RunError
from dpft.parallel.silence import is_beside_first
from dpft.parallel.submitted import submitted_task
from dpft.records.form import read_record, write_record
from dpft.records.kept import EndedJob
from dpft.run_folder import EXIT_CODES, PRIVATE, private_path
from dpft.runs.exit_codes import FAILED, say


@dataclass(frozen=True, kw_only=True)
class SweptJob:
    """One job of a sweep that has ended."""

    folder: Path
    exit_code: int
    log: str | None = None
    """File with what it says, where it does not speak here."""


def run_noting_exit_code(job: Callable[[], int], command: str) -> int:
    """Returns a job's exit code, noted on disk where the job is one of a sweep.

    Until the job ends, what is noted is the code of one that broke off.

    Args:
        job: The work; it returns its exit code.
        command: Tells this command's jobs from those of an earlier one in the same folder.

    Raises:
        InputError: The sweep's private folder is a symbolic link.
        OSError: The code cannot be written.
    """
    if HydraConfig.get().mode != RunMode.MULTIRUN or is_beside_first():
        return job()
    _note(FAILED, command)
    code = job()
    _note(code, command)
    return code


def swept_jobs(sweep: Path, command: str) -> list[SweptJob]:
    """Returns the jobs of a sweep that one command started, by number.

    Args:
        sweep: The sweep's folder.
        command: As for ``run_noting_exit_code``.
    """
    paths = [path for path in (sweep / EXIT_CODES).glob("*.json") if path.stem.isdecimal()]
    ended = sorted(paths, key=lambda path: int(path.stem))
    return [
        SweptJob(
            folder=Path(os.path.normpath(sweep / job.folder)), exit_code=job.exit_code, log=job.log
        )
        for job in (read_record(path, EndedJob) for path in ended)
        if job.command == command
    ]


def say_where_jobs_speak(jobs: Sequence[SweptJob]) -> None:
    """Says of jobs that failed, and did not speak here, where they say why."""
    for job in jobs:
        if job.exit_code and job.log is not None:
            say(f"the job of {job.folder} ended with {job.exit_code} and says why in {job.log}")


def lost_process(error: BrokenExecutor) -> RunError:
    """Returns what to say where a launcher's process was killed, and others perhaps with it."""
    return RunError(
        f"the launcher of this sweep lost a process ({' '.join(str(error).split()) or 'killed'});"
        " runs that broke off go on with dpft train resume=RUN. If memory was short, run fewer at"
        " once, such as hydra.launcher.n_jobs=1."
    )


def forget_exit_codes(sweep: Path) -> None:
    """Removes what the jobs of a sweep noted."""
    for path in (sweep / EXIT_CODES).glob("*.json"):
        path.unlink()
    for folder in (sweep / EXIT_CODES, sweep / PRIVATE):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _note(code: int, command: str) -> None:
    hydra = HydraConfig.get()
    sweep = Path(hydra.runtime.cwd) / hydra.sweep.dir
    for folder in (sweep / PRIVATE, sweep / EXIT_CODES):
        if folder.is_symlink():
            raise InputError(
                f"{folder} must be a folder of its own, got a symbolic link; remove it, or choose"
                " another folder with hydra.sweep.dir=DIR."
            )
    notes = private_path(sweep, EXIT_CODES)
    notes.mkdir(mode=0o700, exist_ok=True)
    task = submitted_task()
    ended = EndedJob(
        command=command,
        exit_code=code,
        folder=os.path.relpath(hydra.runtime.output_dir, sweep),
        log=None if task is None or task.log is None else str(task.log),
    )
    write_record(notes / f"{hydra.job.num}.json", ended, mode=0o600)
