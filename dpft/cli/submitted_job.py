"""A job of a sweep that submitit runs: on Slurm, in one task or in several, killed and requeued.

A task does not come through ``dpft``'s ``main``: submitit unpickles the job and calls it. So what
``main`` sets up is set up here. submitit's own handler of its signal (SIGUSR2, before Slurm's time
is up or a job is preempted) requeues the job and leaves at once; here it waits until the step is
finished and saved.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError, SubprocessError
from types import FrameType

from dpft.cli.signals import termination_as_exit
from dpft.errors import DpftError, InputError, RunError
from dpft.parallel.silence import silent_beside_first
from dpft.parallel.submitted import SLURM, Task, joined, submitted_task
from dpft.runs.exit_codes import say
from dpft.training.termination import TERMINATED

PREEMPT_SIGNAL = "SUBMITIT_PREEMPT_SIGNAL"
"""Variable with which submitit is told of another signal than USR2."""
GRACE = 60.0
"""Seconds after SIGTERM within which Slurm sends the other signal of a preemption, or kills."""


@contextmanager
def in_task() -> Iterator[Task | None]:
    """Yields this process's place in a job of submitit, set up as one process of the run.

    None where submitit did not start this process; nothing is set up then.
    """
    task = submitted_task()
    if task is None:
        yield None
        return
    with joined(task), silent_beside_first(), termination_as_exit():
        yield task


def until_preempted(job: Callable[[], int], task: Task | None) -> int:
    """Returns a job's exit code; one that submitit's signal ends has submitit requeue it.

    Args:
        job: The work, which SIGTERM ends after the step with ``SystemExit``.
        task: This process's place; None: the job is run as it is.

    Raises:
        SystemExit: The job is requeued, so this process ends; or it ended with another code.
    """
    if task is None:
        return job()
    with _preemption_as_termination() as preemption:
        try:
            return job()
        except SystemExit as exit_:
            if exit_.code != TERMINATED:
                raise
    preemption.wait(GRACE if task.executor == SLURM else 0)
    return preemption.requeue()


class _Preemption:
    """Whether submitit's signal has come, and what submitit does when it comes."""

    def __init__(self) -> None:
        self.number = signal.Signals["SIG" + os.environ.get(PREEMPT_SIGNAL, "USR2")]
        self._of_submitit = signal.getsignal(self.number)
        self._is_running, self._has_come = True, False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handles the signal: it ends the job as SIGTERM does."""
        self._has_come = True
        if self._is_running:
            signal.raise_signal(signal.SIGTERM)

    def has_ended(self) -> None:
        """Takes note that there is no job to end any more."""
        self._is_running = False

    def wait(self, seconds: float) -> None:
        """Waits for the signal, which may follow SIGTERM."""
        end = time.monotonic() + seconds
        while not self._has_come and time.monotonic() < end:
            time.sleep(0.1)

    def requeue(self) -> int:
        """Has submitit requeue the job, if its signal has come; in the first task this ends all."""
        if self._has_come and callable(self._of_submitit):
            try:
                self._of_submitit(self.number, None)
            except (RuntimeError, SubprocessError, OSError) as error:
                say(f"the job is not requeued: {' '.join(str(error).split())}")
        return TERMINATED


@contextmanager
def _preemption_as_termination() -> Iterator[_Preemption]:
    """Turns submitit's signal into SIGTERM inside the block, and keeps it for later afterwards."""
    preemption = _Preemption()
    signal.signal(preemption.number, preemption.note)
    try:
        yield preemption
    finally:
        preemption.has_ended()


def launch_error(error: RuntimeError | ValueError) -> DpftError | None:
    """Returns what to say of an error of submitit's launcher; None of any other error."""
    text = " ".join(str(error).split())
    if isinstance(error.__cause__, CalledProcessError) and _is_submitits(error):
        return InputError(
            "Slurm took no job, for the reason that sbatch gives above; change hydra.launcher.KEY"
            " to what this cluster allows."
        )
    if 'Could not detect "srun"' in text:
        return InputError(
            "hydra/launcher=submitit_slurm needs Slurm's commands srun and sbatch, got none on this"
            " machine; start it where they are, or take hydra/launcher=submitit_local."
        )
    if "LocalExecutor can use only one node" in text:
        return InputError(
            "hydra.launcher.nodes must be 1 with hydra/launcher=submitit_local, which has this"
            " machine alone; drop it, or take hydra/launcher=submitit_slurm."
        )
    if _is_submitits(error):
        return RunError(
            "a job of this sweep ended without an answer; its log is in .submitit of the sweep's"
            " folder. Other jobs may run on: when all have ended, dpft account runs=FOLDER has"
            " their bill, and runs that broke off go on with dpft train resume=RUN."
        )
    return None


def _is_submitits(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] == "submitit"
