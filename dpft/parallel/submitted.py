"""A task of a job that submitit started, on Slurm or on this machine: its place among the others.

submitit starts as many tasks as a job is asked for, all with the same work, and tells each of them
its number in variables of its own. Here they become the variables that torchrun would have set, so
that everything after that is as under torchrun.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EXECUTOR = "SUBMITIT_EXECUTOR"
"""Variable in which submitit says by what it started a process."""
FOLDER = "SUBMITIT_FOLDER"
"""Variable in which a process of submitit keeps where its job's files are."""
SLURM, LOCAL = "slurm", "local"
LOOPBACK_ADDRESS = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below those that Linux gives to programs that do not care which one they have."""


@dataclass(frozen=True, kw_only=True)
class Task:
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
        """Returns what torchrun would tell a process in this place; a given port is kept."""
        values = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.size // self.nodes,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": os.environ.get("MASTER_PORT", port_of(self.job)),
        }
        return {name: str(value) for name, value in values.items()}


def submitted_task() -> Task | None:
    """Returns this process's place in a job of submitit; None where submitit did not start it."""
    if os.environ.get(EXECUTOR) not in (SLURM, LOCAL):
        return None
    from submitit import JobEnvironment  # Not everybody has it; who is in a job of it does.

    there = JobEnvironment()
    return Task(
        job=f"{there.cluster}:{there.job_id}",
        executor=there.cluster,
        rank=there.global_rank,
        size=there.num_tasks,
        local_rank=there.local_rank,
        nodes=there.num_nodes,
        address=LOOPBACK_ADDRESS if there.num_nodes == 1 else there.hostnames[0],
        log=there.paths.stderr if FOLDER in os.environ else None,
    )


def submitted_job() -> str | None:
    """Returns what tells the job that this process is in from any other; None outside of one."""
    task = submitted_task()
    return None if task is None else task.job


def port_of(job: str) -> int:
    """Returns the port at which the tasks of a job meet, the same for all of them.

    >>> port_of("slurm:17") == port_of("slurm:17") != port_of("slurm:18")
    True
    """
    return PORTS[zlib.crc32(job.encode()) % len(PORTS)]


@contextmanager
def joined(task: Task | None) -> Iterator[None]:
    """Sets torchrun's variables, inside the block, in a task that is not alone in its job.

    Args:
        task: This process's place. Processes that torchrun has started inside of a task have one
            of their own already, and keep it.
    """
    if task is None or task.size == 1 or "RANK" in os.environ:
        yield
        return
    before = dict(os.environ)
    os.environ.update(task.variables())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
