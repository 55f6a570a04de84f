"""Read a process's rank from its environment, and handle SIGTERM, without importing torch.

Three things rest on it. All processes of a run but rank 0 print nothing: rank 0 says what there is
to say. And a task of a job that submitit started, on Slurm or on this machine, takes its place
among the others: submitit starts as many tasks as a job is asked for, all with the same work, and
tells each of them its number in variables of its own. Here they become the variables that torchrun
would have set, so that everything after that is as under torchrun. And SIGTERM lets a step that has
begun be finished before the run ends.
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
"""Seconds that a process leaves the first one to say of an error what both may have found."""
_voices: list[TextIO] = []


def is_other_rank() -> bool:
    """Return whether this process is a rank of a run other than rank 0."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return rank.isdecimal() and int(rank) > 0 and size.isdecimal() and int(size) > 1


@contextmanager
def silent_except_rank_0() -> Iterator[None]:
    """Silences every rank but rank 0 in the block.

    Libraries print, too, also from C++: so it is the file descriptors that lead nowhere. An error
    that only this process knows of is said by ``error_stream``.
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
    """Let nothing in the block log anything."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def error_stream() -> TextIO:
    """Return where an error is said: stderr, also where everything else is silent."""
    return _voices[-1] if _voices else sys.stderr


def wait_for_rank_0() -> None:
    """Wait, in a process beside the first, for the first one to say what is wrong.

    What is wrong with words is found by every process at once, and torchrun ends the others as
    soon as one has ended. What is wrong here alone is said here, a moment later.
    """
    if _voices:
        time.sleep(PATIENCE)


EXECUTOR = "SUBMITIT_EXECUTOR"
"""Variable in which submitit says by what it started a process."""
FOLDER = "SUBMITIT_FOLDER"
"""Variable in which a process of submitit keeps where its job's files are."""
SLURM, LOCAL = "slurm", "local"
LOOPBACK_ADDRESS = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below those that Linux gives to programs that do not care which one they have."""


@dataclass(frozen=True, kw_only=True)
class SubmittedTask:
    """One of the processes of a job."""

    job: str
    """What tells the job from any other; the same when it is requeued."""
    executor: str
    """slurm or local."""
    rank: int
    size: int
    local_rank: int
    nodes: int
    address: str
    """Of the machine of the first task."""
    log: Path | None
    """Where what it says on stderr is kept."""

    def variables(self) -> dict[str, str]:
        """Return what torchrun would tell a process in this place; a given port is kept."""
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
    """Return this process's place in a job of submitit, or None if submitit did not start it."""
    if os.environ.get(EXECUTOR) not in (SLURM, LOCAL):
        return None
    from submitit import JobEnvironment  # Not everybody has it; who is in a job of it does.

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
    """Set torchrun's variables, inside the block, in a task that is not alone in its job.

    Args:
        task: This process's place. Processes that torchrun has started inside of a task have one
            of their own already, and keep it.
    """
    if task is None or task.size == 1 or "RANK" in os.environ:
        yield
        return
    with environment_kept():
        os.environ.update(task.variables())
        yield


@contextmanager
def environment_kept() -> Iterator[None]:
    """Put the variables of the environment back at the end."""
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
    """Yield a function that says whether SIGTERM has come, which in the block ends nothing.

    Only the main thread is told of signals; elsewhere the answer is always no.
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
