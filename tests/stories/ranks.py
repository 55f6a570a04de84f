"""Processes of torchrun: started for a story, found by their numbers, killed and outlived."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dpft

SECONDS = 240
"""After which processes that do nothing are taken for hung."""
MINUTE = 60
"""Within which all processes of a run have ended once one of them has."""


def free_port() -> int:
    """Returns a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(
    root: Path, command: Sequence[str], log: str = "log", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command of Python in a folder; none of its processes outlives the block.

    Args:
        root: Where it runs.
        command: What follows ``python``.
        log: File in ``root`` for all that is said.
        environment: Variables besides the test's own.
    """
    variables = {**os.environ, "PYTHONPATH": str(Path(dpft.__file__).parents[1]), **environment}
    with (root / log).open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=root, env=variables, stdout=said, stderr=said
        )
    try:
        yield process
    finally:
        for pid in [process.pid, *children(process.pid)]:
            kill(pid)
        process.wait(MINUTE)


def torchrun(words: Sequence[str], *, size: int = 2, restarts: int = 0) -> list[str]:
    """Returns what starts ``dpft`` of these words in several processes."""
    return [
        *("-m", "torch.distributed.run", f"--nproc_per_node={size}"),
        *(f"--max-restarts={restarts}", f"--master_port={free_port()}", "-m", "dpft", *words),
    ]


def by_hand(rank: int, port: int, size: int = 2) -> dict[str, str]:
    """Returns the variables of a process that is started without torchrun."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def children(pid: int) -> list[int]:
    """Returns the numbers of a process's children, in the order of their start."""
    try:
        return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a process a signal, if it is there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_there(pid: int) -> bool:
    """Returns whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happens: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Waits for something."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"nothing happened for {seconds} seconds"
        time.sleep(0.002)
