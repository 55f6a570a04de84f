"""Processes of one run: of torchrun, found by their numbers, killed and outlived, or forked."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dpft
from dpft.cli.main import main
from tests.stories.murder import forking

SECONDS = 240
"""After which processes that do nothing are taken for hung."""
MINUTE = 60
"""Within which all processes of a run have ended once one of them has."""


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(
    root: Path, command: Sequence[str], log: str = "log", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Python in a folder; none of its processes outlives the block.

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
    """Return what starts ``dpft`` of these words in several processes."""
    return [
        *("-m", "torch.distributed.run", f"--nproc_per_node={size}"),
        *(f"--max-restarts={restarts}", f"--master_port={free_port()}", "-m", "dpft", *words),
    ]


def by_hand(rank: int, port: int, size: int = 2) -> dict[str, str]:
    """Return the variables of a process that is started without torchrun."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def fork_ranks(root: Path, words: Sequence[str], *more: Any, target: Any = None) -> list[Any]:
    """Start the two ranks of ``dpft words``; each says what it says to ``root/log-RANK``.

    Args:
        root: Where they run.
        words: Of the command.
        more: Arguments of ``target``.
        target: What each is to do instead of ``run_rank``.
    """
    context, port = forking(), free_port()
    ranks: list[Any] = [
        context.Process(target=target or run_rank, args=(root, words, rank, port, *more))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    return ranks


def run_rank(root: Path, words: Sequence[str], rank: int, port: int) -> None:
    """Run ``dpft words`` as one rank, to its end."""
    become_rank(root, rank, port)
    raise SystemExit(main(list(words)))


def become_rank(root: Path, rank: int, port: int) -> None:
    """Give this process the variables, the folder and the log of a rank."""
    os.chdir(root)
    os.environ.update(by_hand(rank, port))
    log = os.open(f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)


def join(ranks: Sequence[BaseProcess], seconds: float = SECONDS) -> list[int | None]:
    """Return how processes end; none of them outlives the call."""
    end = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    return codes


def logs(root: Path) -> str:
    """Return what forked ranks said."""
    return "\n".join((root / f"log-{rank}").read_text() for rank in range(2))


def run_ranks(root: Path, *words: str) -> str:
    """Run ``dpft words`` in two forked ranks, to its end; return what they say."""
    codes = join(fork_ranks(root, words))
    assert codes == [0, 0], logs(root)
    return logs(root)


def children(pid: int) -> list[int]:
    """Return the numbers of a process's children, in the order of their start."""
    try:
        return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a process a signal, if it is there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_there(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happens: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"nothing happened for {seconds} seconds"
        time.sleep(0.002)
