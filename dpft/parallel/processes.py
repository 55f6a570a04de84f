"""The processes of a run: start them with torch's elastic agent, and join torch's process group.

``launch`` (``launch=local``) starts the processes on this machine with torch's own elastic agent,
on which torchrun is based. The agent watches the processes and ends all of them once one has ended.
It restarts them up to the configured number of times. All output comes from the processes; the
agent prints and writes nothing. In each process, ``started`` joins the process group for the
duration of a block.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api
from torch.distributed.rendezvous import rendezvous

from dpft.devices import accelerator, group_backends
from dpft.errors import DpftError, InputError, RunError, SaidElsewhere
from dpft.parallel.parallel_config import (
    RECORDER,
    LaunchConfig,
    ParallelConfig,
    World,
    check_start,
    world,
)
from dpft.parallel.rank_environment import LOOPBACK_ADDRESS, environment_kept, without_logging
from dpft.parallel.ranks import ALONE, Ranks

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo"
MEETING = timedelta(minutes=1)
"""Maximum time that the ranks wait for each other at the start."""
MEETING_THREAD = "meeting"
_current = ALONE


def current_ranks() -> Ranks:
    """Return the ranks of the run of this process; a single rank outside of a run."""
    return _current


@contextmanager
def started(config: ParallelConfig) -> Iterator[Ranks]:
    """Join the processes that torchrun started, inside the block; one rank with ``parallel=none``.

    On one machine, the processes communicate over its loopback interface. Between machines, neither
    gloo nor NCCL encrypts or authenticates the traffic, so the network must be trusted.

    Raises:
        InputError: See ``check_start``; or the port is in use, or not all processes have joined.
    """
    global _current
    launched = check_start(config)
    if launched is None:
        yield ALONE
        return
    _join(config, launched)
    on_loopback = launched.on_one_node and {os.environ[name] for name in INTERFACES} == {LOOPBACK}
    _current = Ranks(
        launched.rank, launched.size, local_rank=launched.local_rank, on_one_node=on_loopback
    )
    try:
        yield _current
    finally:
        _current = ALONE
        with suppress(RuntimeError):
            dist.destroy_process_group()


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Return the device of a rank among those of its machine.

    Raises:
        InputError: The machine has fewer devices than ranks.
    """
    if ranks.size == 1 or device.type == "cpu":
        return device
    count = torch.accelerator.device_count()
    if ranks.local_rank >= count:
        raise InputError(
            f"train.device={device.type} needs a device for each process, got {count} for rank"
            f" {ranks.local_rank} of this machine. Start at most {count} processes there, or use"
            " the CPU.",
            key="train.device",
            value=device.type,
            hint="train.device=cpu",
        )
    local_device = torch.device(device.type, ranks.local_rank)
    torch.accelerator.set_device_index(ranks.local_rank)
    return local_device


def _join(config: ParallelConfig, launched: World) -> None:
    """Create the process group.

    Raises:
        InputError: The port of rank 0 is in use, or not all ranks have joined.
    """
    if launched.on_one_node:
        for name in INTERFACES:
            os.environ.setdefault(name, LOOPBACK)
    os.environ[RECORDER] = "0"
    error = _failure_within(MEETING, partial(_make_group, config, launched))
    if error is None:
        return
    if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
        port = os.environ.get("MASTER_PORT")
        raise InputError(
            f"MASTER_PORT={port} is in use by another program. Choose another port, for example"
            " with torchrun --master_port=PORT.",
            key="MASTER_PORT",
            value=port,
        )
    raise InputError(
        f"The {launched.size} processes of the run must reach MASTER_ADDR and MASTER_PORT within"
        f" {MEETING.total_seconds():.0f} seconds, but did not. Start all of them at once.",
        key="MASTER_ADDR",
    ) from error


def _failure_within(limit: timedelta, work: Callable[[], None]) -> Exception | None:
    """Return the error that ``work`` raises, or a ``TimeoutError`` if it takes too long.

    If an unrelated program listens at the port, the wait never ends, regardless of torch's timeout.
    The thread that waits is then abandoned.
    """
    failures: list[Exception] = [TimeoutError()]

    def carried_out() -> None:
        try:
            work()
            failures.clear()
        except (RuntimeError, ValueError) as error:
            failures[:] = [error]

    thread = threading.Thread(target=carried_out, name=MEETING_THREAD, daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    return failures[0] if failures else None


def _make_group(config: ParallelConfig, launched: World) -> None:
    """Connect the ranks, and return once each of them is connected to all the others.

    Torch itself returns as soon as this rank is connected. If this rank then ended immediately
    because it rejects its input, the connection of the other ranks would fail. They would report
    that this rank never joined.
    """
    offloads = config.cpu_offload and config.name == "ddp"
    # The ranks exchange their addresses in this store, and no secrets.
    store, _, _ = next(iter(rendezvous("env://", launched.rank, launched.size, timeout=MEETING)))
    dist.init_process_group(
        group_backends(None if offloads else accelerator()),
        store=PrefixStore(f"dpft/{launched.restarts}", store),
        rank=launched.rank,
        world_size=launched.size,
        timeout=timedelta(minutes=config.timeout_minutes),
    )
    # Do not use a barrier of the store: the store ends with rank 0, while others may still use it.
    dist.all_reduce(torch.zeros(1))


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
THREADS = "OMP_NUM_THREADS"
TOGETHER = 1
"""Seconds within which processes count as having ended at the same time."""


def launch(config: LaunchConfig, words: Sequence[str]) -> None:
    """Start a ``dpft`` command in several processes, and wait until all have ended.

    Args:
        config: The ``launch`` section of the configuration.
        words: Arguments of the command.

    Raises:
        InputError: Processes were already started, or the number to start is unknown.
        SaidElsewhere: A process has failed and has reported its error.
        RunError: A process was killed.
        SystemExit: A signal ended this process; no other process is left.
    """
    processes = number_of_processes(config)
    agent = api.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=f"dpft-{os.getpid()}",
        max_restarts=config.max_restarts,
        local_addr=LOOPBACK_ADDRESS,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    with _as_before(processes):
        try:
            api.elastic_launch(agent, sys.executable)("-m", "dpft", *words)
        except ChildFailedError as error:
            raise ended(error.failures) from None
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None


def number_of_processes(config: LaunchConfig) -> int:
    """Return the number of processes to start.

    Raises:
        InputError: Processes were already started, or there is no accelerator to derive the number
            from.
    """
    if world() is not None:
        raise InputError(
            "launch=local starts processes itself, but torchrun has started some already. Use"
            " only one of the two.",
            key="launch",
            value="local",
            hint="launch=none",
        )
    processes = config.processes or torch.accelerator.device_count()
    if not processes:
        raise InputError(
            "launch.processes must be set on a machine without an accelerator, got null.",
            key="launch.processes",
            hint="launch.processes=2",
        )
    return processes


def ended(failures: Mapping[int, ProcessFailure]) -> DpftError:
    """Return the error for processes that the agent reports as failed.

    Only the first failures count. Processes that failed later were ended by the agent, or failed
    because other processes were gone.
    """
    first = min(failure.timestamp for failure in failures.values())
    early = {
        rank: failure.exitcode
        for rank, failure in sorted(failures.items())
        if failure.timestamp <= first + TOGETHER
    }
    for rank, code in early.items():
        if code < 0 and code != -signal.SIGTERM:
            name = signal.Signals(-code).name
            return RunError(
                f"Process {rank} of the run was killed by {name}. A run that has taken a step can"
                " be resumed with resume=RUN, or automatically with launch.max_restarts=N.",
            )
    codes = [code for code in early.values() if code > 0]
    return SaidElsewhere("an error", codes[0] if codes else 128 + signal.SIGTERM)


@contextmanager
def _as_before(processes: int) -> Iterator[None]:
    """Give each process its share of the CPU cores; undo the agent's changes after the block."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    cores = len(os.sched_getaffinity(0))
    try:
        with environment_kept(), without_logging():
            os.environ.setdefault(THREADS, str(max(1, cores // processes)))
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
