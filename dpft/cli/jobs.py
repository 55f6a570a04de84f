"""Jobs of a Hydra sweep: their folders and exit codes, and jobs on Slurm through submitit.

Hydra creates the folder of a run before the run can check its configuration. A rejected run would
leave an empty folder, so this module deletes that folder. It never deletes anything that existed
before the command. No two runs share a folder. A launcher may run jobs in other processes, so each
job writes its exit code into ``private/exit_codes`` of the sweep's folder. The command that started
the sweep reads the codes there.

submitit unpickles and calls a job, so the job does not pass through ``main`` of ``dpft``. This
module therefore repeats the setup of ``main``. Before Slurm's time limit or a preemption, the job
receives a signal (SIGUSR2). submitit's own handler would requeue the job and exit at once. The
handler in this module first waits until the step is finished and saved.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError, SubprocessError
from threading import Event
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from dpft.commands.exit_codes import FAILED, ExitStatus, say, termination_as_exit
from dpft.errors import DpftError, InputError, RunError
from dpft.parallel.rank_environment import (
    SLURM,
    TERMINATED,
    SubmittedTask,
    is_other_rank,
    silent_except_rank_0,
    submitted_task,
    torchrun_environment,
)
from dpft.run_folder import EXIT_CODES, PRIVATE, SWEEP_RECORD, private_path
from dpft.strict_model import Versioned, read_model, write_model


class EndedJob(Versioned):
    """Contents of private/exit_codes/NUMBER.json in a sweep's folder: the result of a job."""

    command: str
    """Identifier that separates the jobs of a command from older jobs in the same folder."""
    exit_code: int
    """Exit code as for a process."""
    folder: str
    """Folder of the run, relative to the folder of the sweep."""
    log: str | None = None
    """File with the output of a submitted job."""


@dataclass(frozen=True, kw_only=True)
class SweptJob:
    """Job of a sweep that has ended."""

    folder: Path
    exit_code: int
    log: str | None = None
    """File with the output of the job, if the output is not shown here."""


@contextmanager
def exit_code_noted(outcome: ExitStatus, command: str) -> Iterator[None]:
    """Write the exit code of the job in the block to disk, if the job belongs to a sweep.

    Until the job ends, the file contains the code of a failed job, so a killed job counts as
    failed.

    Args:
        outcome: The result of the job.
        command: Identifier that separates the jobs of this command from older jobs in the same
            folder.

    Raises:
        InputError: The sweep's private folder is a symbolic link.
        OSError: The code cannot be written.
    """
    if HydraConfig.get().mode != RunMode.MULTIRUN or is_other_rank():
        yield
        return
    _note(FAILED, command)
    yield
    _note(outcome.exit_code, command)


def swept_jobs(sweep: Path, command: str) -> list[SweptJob]:
    """Return the jobs of a sweep that the given command started, sorted by number."""
    paths = [path for path in (sweep / EXIT_CODES).glob("*.json") if path.stem.isdecimal()]
    ended = sorted(paths, key=lambda path: int(path.stem))
    return [
        SweptJob(
            folder=Path(os.path.normpath(sweep / job.folder)), exit_code=job.exit_code, log=job.log
        )
        for job in (read_model(path, EndedJob) for path in ended)
        if job.command == command
    ]


def say_where_jobs_speak(jobs: Sequence[SweptJob]) -> None:
    """Print the location of the error messages of failed jobs whose output is not shown here."""
    for job in jobs:
        if job.exit_code and job.log is not None:
            say(f"the job in {job.folder} failed with exit code {job.exit_code}; see {job.log}")


def lost_process(error: BrokenExecutor) -> RunError:
    """Return the error for a killed process of the launcher."""
    return RunError(
        f"The launcher of this sweep lost a process ({' '.join(str(error).split()) or 'killed'})."
        " Resume interrupted runs with dpft train resume=RUN; if the machine ran out of memory, run"
        " one job at a time with hydra.launcher.n_jobs=1."
    )


def _note(code: int, command: str) -> None:
    hydra = HydraConfig.get()
    sweep = Path(hydra.runtime.cwd) / hydra.sweep.dir
    for folder in (sweep / PRIVATE, sweep / EXIT_CODES):
        if folder.is_symlink():
            raise InputError(
                f"{folder} must be a folder, got a symbolic link. Remove the link, or choose"
                " another folder with hydra.sweep.dir=DIR.",
                key=str(folder),
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
    write_model(notes / f"{hydra.job.num}.json", ended, mode=0o600)


PREEMPT_SIGNAL = "SUBMITIT_PREEMPT_SIGNAL"
"""Environment variable that replaces the signal USR2 of submitit by another signal."""
GRACE = 60.0
"""Seconds to wait after SIGTERM. Within this time, Slurm sends the preemption signal or kills the
job."""


@contextmanager
def in_task() -> Iterator[SubmittedTask | None]:
    """Set this process up as one process of a submitit job, and yield its place in the job.

    If submitit did not start this process, nothing is set up and None is yielded.
    """
    task = submitted_task()
    if task is None:
        yield None
        return
    with torchrun_environment(task), silent_except_rank_0(), termination_as_exit():
        yield task


@contextmanager
def requeued_if_preempted(outcome: ExitStatus, task: SubmittedTask | None) -> Iterator[None]:
    """Let submitit requeue the job in the block if submitit's signal ended the job.

    submitit's handler requeues the job and exits at once. In this block, the signal has the effect
    of SIGTERM instead: the job ends with ``SystemExit`` after the step. Then submitit's handler is
    called.

    Args:
        outcome: The result of the job.
        task: The place of this process in the submitit job; None leaves signals unchanged.

    Raises:
        SystemExit: The job was requeued, so this process ends, or the job ended with another code.
    """
    if task is None:
        yield
        return
    number = signal.Signals["SIG" + os.environ.get(PREEMPT_SIGNAL, "USR2")]
    requeue, has_come, ended = signal.getsignal(number), Event(), Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        has_come.set()
        if not ended.is_set():
            signal.raise_signal(signal.SIGTERM)

    signal.signal(number, note)
    try:
        yield
        return
    except SystemExit as exit_:
        if exit_.code != TERMINATED:
            raise
    finally:
        ended.set()
    if has_come.wait(GRACE if task.executor == SLURM else 0) and callable(requeue):
        try:
            requeue(number, None)
        except (RuntimeError, SubprocessError, OSError) as error:
            say(f"the job could not be requeued: {' '.join(str(error).split())}")
    outcome.exit_code = TERMINATED


def launch_error(error: RuntimeError | ValueError) -> DpftError | None:
    """Return a user-facing error for an error of submitit's launcher, or None for other errors."""
    text = " ".join(str(error).split())
    if isinstance(error.__cause__, CalledProcessError) and _is_submitits(error):
        return InputError(
            "Slurm rejected the job, for the reason that sbatch prints above. Change"
            " hydra.launcher.KEY to a value that this cluster allows.",
            key="hydra.launcher",
        )
    if 'Could not detect "srun"' in text:
        return InputError(
            "hydra/launcher=submitit_slurm needs Slurm's commands srun and sbatch, which this"
            " machine does not have. Start it on a machine that has them, or run the jobs here.",
            key="hydra/launcher",
            value="submitit_slurm",
            hint="hydra/launcher=submitit_local",
        )
    if "LocalExecutor can use only one node" in text:
        return InputError(
            "hydra.launcher.nodes must be 1 with hydra/launcher=submitit_local, which uses only"
            " this machine. Remove the key, or use hydra/launcher=submitit_slurm.",
            key="hydra.launcher.nodes",
        )
    if _is_submitits(error):
        return RunError(
            "A job of this sweep ended without a result; its log is in the folder .submitit of the"
            " sweep. When all other jobs have ended, compute their cost with"
            " dpft account runs=FOLDER, and resume interrupted runs with dpft train resume=RUN."
        )
    return None


def _is_submitits(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] == "submitit"


# Hydra creates its callbacks from the configuration, so they can pass values only through module
# variables.
_new_roots: list[tuple[Path, Path]] = []
_sweeps: list[Path] = []


class RunFolders(Callback):
    """Hydra callback that records the folders that a command is about to create."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Record the folder of a single run."""
        note_root(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Record the folder of a sweep."""
        note_root(config.hydra.sweep.dir)
        _sweeps.append(Path(config.hydra.sweep.dir).absolute())


def note_root(folder: str) -> None:
    """Record a folder that does not exist yet, and its uppermost parent that does not exist."""
    path = Path(folder).absolute()
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    if missing:
        _new_roots.append((path, missing[-1]))


def sweep_folder() -> Path | None:
    """Return the folder of this command's sweep, or None without a sweep."""
    return _sweeps[-1] if _sweeps else None


def remove_empty_folders(job_folders: Iterable[Path] = ()) -> None:
    """Delete the folders that this command created, unless something was written to them."""
    folders_of_jobs = list(job_folders)
    for root, uppermost in _new_roots:
        for job_folder in folders_of_jobs:
            if job_folder.is_relative_to(root):
                _remove_if_empty(job_folder)
        if root.is_dir() and {entry.name for entry in root.iterdir()} <= {SWEEP_RECORD, PRIVATE}:
            for path in (root / EXIT_CODES).glob("*.json"):  # written by the jobs of a sweep
                path.unlink()
            for folder in (root / EXIT_CODES, root / PRIVATE):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
            (root / SWEEP_RECORD).unlink(missing_ok=True)
        for folder in (root, *root.parents):
            if folder.is_relative_to(uppermost):
                _remove_if_empty(folder)
    _new_roots.clear()
    _sweeps.clear()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
