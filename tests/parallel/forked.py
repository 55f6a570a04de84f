"""Real ranks for tests: forked processes, joined by gloo on the loopback, that never hang.

Importing torch and transformers takes seconds and forking takes milliseconds, so a test worker
forks a server before its first test, when everything is imported and no thread of torch's runs.
The server forks each test's ranks, so that they begin as the server did, whatever tests ran before.
"""

import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Collection
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from dpft.parallel.parallel_config import ParallelConfig
from dpft.parallel.processes import started

LIMIT = 60.0
"""Seconds after which the ranks of a test are killed, and the test fails."""
LOST = "lost"
"""What a rank returns that ended without an answer, as the test expected."""
_server: Connection | None = None
# Below the ports that the system hands out by itself.
_ports = count(10_000 + os.getpid() % 100 * 200)


def start_server() -> None:
    """Fork the server, once in a test worker, before any test has run."""
    global _server
    if _server is not None:
        return
    # What every run imports on its way: else each rank would, where few files are collected.
    for name in ("peft", "transformers.optimization"):
        import_module(name)
    here, there = Pipe()
    if os.fork() == 0:
        try:
            here.close()
            _serve(there)
        finally:
            os._exit(0)
    there.close()
    _server = here


def on_ranks(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    limit: float = LIMIT,
    dying: Collection[int] = (),
) -> list[Any]:
    """Return what a function returns on each of some ranks, which are new processes.

    Args:
        function: Of a module, called with ``Ranks`` and ``args``, on every rank.
        size: How many ranks.
        args: For all of them.
        limit: Seconds that they have; then all are killed.
        dying: Ranks that end without an answer; theirs is ``LOST``.

    Raises:
        AssertionError: A rank raised, died or was too slow; it says what each of them did.
    """
    return _asked(function, size, args, limit, dying)


def in_new_process(
    function: Callable[..., Any], *args: Any, limit: float = LIMIT, dies: bool = False
) -> Any:
    """Return what a function returns in a new process that knows of no others.

    Args:
        function: Of a module.
        args: Its own.
        limit: Seconds that it has; then it is killed.
        dies: Whether it ends without an answer; the answer is ``LOST``.

    Raises:
        AssertionError: It raised, died or was too slow; with its traceback.
    """
    (answer,) = _asked(function, None, args, limit, (0,) if dies else ())
    return answer


def _asked(
    function: Callable[..., Any],
    size: int | None,
    args: tuple[Any, ...],
    limit: float,
    dying: Collection[int],
) -> list[Any]:
    assert _server is not None, "tests/conftest.py starts the server once tests are collected"
    _server.send_bytes(pickle.dumps((function, size, args, limit, tuple(dying))))
    answers, faults = pickle.loads(_server.recv_bytes())
    assert not faults, "\n".join(faults)
    return list(answers)


def _serve(tests: Connection) -> None:
    """Run functions on ranks until the test worker is gone."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.fsync = lambda _: None  # as in the test worker: what it guards against is a power cut
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    while True:
        try:
            request = tests.recv_bytes()
        except EOFError:
            return
        try:
            answers = _answers(*pickle.loads(request))
        except Exception:  # the server goes on for the tests that follow
            answers = pickle.dumps(([], [traceback.format_exc()]))
        tests.send_bytes(answers)


def _answers(
    function: Callable[..., Any],
    size: int | None,
    args: tuple[Any, ...],
    limit: float,
    dying: list[int],
) -> bytes:
    """Return what each rank answered and what went wrong, pickled; without a size, of no rank."""
    if size is None:
        size, ranks = 1, [_fork(lambda: _tried(lambda: function(*args)))]
    else:
        port = _free_port()
        ranks = [
            _fork(lambda at=rank: _call(function, at, size, port, args)) for rank in range(size)
        ]
    deadline = time.monotonic() + limit
    answers: dict[int, Any] = {}
    faults = []
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(waiting), left):
            rank = waiting.pop(pipe)
            answers[rank], fault = _answer(pipe, is_dying=rank in dying)
            faults += [f"rank {rank} of {size}: {fault}"] if fault else []
    faults += [f"rank {rank} of {size}: still busy after {limit} s" for rank in waiting.values()]
    for process, pipe in ranks:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        pipe.close()
    return pickle.dumps(([answers.get(rank) for rank in range(size)], faults))


def _answer(pipe: Connection, *, is_dying: bool) -> tuple[Any, str | None]:
    """Return what a rank answered, and what was wrong with it."""
    try:
        answer, fault = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return LOST, None if is_dying else "ended without an answer"
    return answer, "answered, and was to die" if is_dying and not fault else fault


def _fork(call: Callable[[], tuple[Any, str | None]]) -> tuple[int, Connection]:
    """Return a process that makes a call, and the pipe of its answer."""
    here, there = Pipe(duplex=False)
    process = os.fork()
    if process == 0:
        try:
            here.close()
            # Not through Connection.send: torch would send tensors as files of a dying process.
            there.send_bytes(pickle.dumps(call()))
        finally:
            os._exit(0)
    there.close()
    return process, here


def _call(
    function: Callable[..., Any], rank: int, size: int, port: int, args: tuple[Any, ...]
) -> tuple[Any, str | None]:
    """Return a function's answer on a rank, or what it raised."""
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(number) for name, number in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

    def call() -> Any:
        with started(ParallelConfig(name="ddp", cpu_offload=True)) as ranks:
            return function(ranks, *args)

    return _tried(call)


def _tried(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return what a call returns, or what it raised."""
    try:
        return call(), None
    except BaseException:
        return None, traceback.format_exc()


def _free_port() -> int:
    """Return a port that nobody listens at."""
    for port in _ports:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
