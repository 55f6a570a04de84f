"""Environment of a process: its rank, and handling of SIGTERM, without importing torch.

This module has three purposes. First, all processes of a run except rank 0 print nothing, and rank
0 reports all messages. Second, a task of a job that submitit started, on Slurm or on this machine,
becomes a rank. Submitit starts the requested number of tasks with the same work and passes each
task its number in its own variables. This module converts them to the variables that torchrun would
have set, so that the rest of dpft behaves as under torchrun. Third, SIGTERM lets the current step
finish before the run ends.
"""

import logging
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

PATIENCE = 5.0
"""Seconds that a rank other than 0 waits before it reports an error, because rank 0 may report the
same error."""
_voices: list[TextIO] = []


def is_other_rank() -> bool:
    """Return whether this process is a rank of a run other than rank 0."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return rank.isdecimal() and int(rank) > 0 and size.isdecimal() and int(size) > 1


@contextmanager
def silent_except_rank_0() -> Iterator[None]:
    """Silence every rank except rank 0 in the block.

    Libraries print too, also from C++. Therefore the file descriptors themselves are redirected to
    the null device. An error that only this process found is written to ``error_stream``.
    """
    if not is_other_rank():
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = open(os.devnull, "w")  # noqa: SIM115 (never closed: a logger may keep it)
    with os.fdopen(kept[1], "w") as spoken:
        _voices.append(spoken)
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        try:
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield
        finally:
            _voices.remove(spoken)
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
            os.close(kept[0])


@contextmanager
def without_logging() -> Iterator[None]:
    """Suppress all logging in the block."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def error_stream() -> TextIO:
    """Return the stream for errors: stderr, also if other output of this process is silenced."""
    return _voices[-1] if _voices else sys.stderr


def wait_for_rank_0() -> None:
    """Wait on every rank except rank 0, so that rank 0 can report an error first.

    All processes find an error in the arguments at the same time, and torchrun ends the others as
    soon as one process has ended. An error that only this process found is reported here a moment
    later.
    """
    if _voices:
        time.sleep(PATIENCE)


EXECUTOR = "SUBMITIT_EXECUTOR"
"""Environment variable in which submitit stores how it started a process."""
FOLDER = "SUBMITIT_FOLDER"
"""Environment variable in which submitit stores the folder of a job's files."""
SLURM, LOCAL = "slurm", "local"
LOOPBACK_ADDRESS = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Ports below the range from which Linux assigns ephemeral ports."""


@dataclass(frozen=True, kw_only=True)
class SubmittedTask:
    """One of the processes of a job."""

    job: str
    """Unique identifier of the job; unchanged when the job is requeued."""
    executor: str
    """slurm or local."""
    rank: int
    size: int
    local_rank: int
    nodes: int
    address: str
    """Address of the machine of the first task."""
    log: Path | None
    """File with the stderr output of the task."""

    def variables(self) -> dict[str, str]:
        """Return the variables that torchrun would set in this process; keep any MASTER_PORT."""
        values = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.size // self.nodes,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": os.environ.get("MASTER_PORT", port_of(self.job)),
        }
        return {name: str(value) for name, value in values.items()}


def submitted_task() -> SubmittedTask | None:
    """Return this process's task in a submitit job, or None if submitit did not start it."""
    if os.environ.get(EXECUTOR) not in (SLURM, LOCAL):
        return None
    from submitit import JobEnvironment  # Optional dependency, installed inside submitit jobs.

    environment = JobEnvironment()
    return SubmittedTask(
        job=f"{environment.cluster}:{environment.job_id}",
        executor=environment.cluster,
        rank=environment.global_rank,
        size=environment.num_tasks,
        local_rank=environment.local_rank,
        nodes=environment.num_nodes,
        address=LOOPBACK_ADDRESS if environment.num_nodes == 1 else environment.hostnames[0],
        log=environment.paths.stderr if FOLDER in os.environ else None,
    )


def port_of(job: str) -> int:
    """Return the port at which the tasks of a job meet, the same for all of them.

    >>> port_of("slurm:17") == port_of("slurm:17") != port_of("slurm:18")
    True
    """
    return PORTS[zlib.crc32(job.encode()) % len(PORTS)]


@contextmanager
def torchrun_environment(task: SubmittedTask | None) -> Iterator[None]:
    """Set torchrun's variables inside the block, in a task of a job with several tasks.

    Args:
        task: The task of this process. Processes that torchrun has started inside a task already
            have their own variables and keep them.
    """
    if task is None or task.size == 1 or "RANK" in os.environ:
        yield
        return
    with environment_kept():
        os.environ.update(task.variables())
        yield


@contextmanager
def environment_kept() -> Iterator[None]:
    """Restore the environment variables at the end of the block."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


TERMINATED = 143
"""Exit code of a run that SIGTERM ended."""


@contextmanager
def termination_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM has arrived.

    Inside the block, SIGTERM does not end the process. Only the main thread receives signals; in
    other threads the function always returns False.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)
