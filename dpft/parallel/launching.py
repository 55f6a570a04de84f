"""``launch=local``: torch's own elastic agent starts the processes of a run on this machine.

It is what torchrun is made of: it watches the processes, ends all of them once one has ended, and
starts them anew as often as it may. Here it says nothing and writes nothing; the processes do.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

from dpft.errors import DpftError, InputError, RunError, SaidElsewhere
from dpft.parallel.launch_config import LaunchConfig
from dpft.parallel.parallel_config import world
from dpft.parallel.silence import without_logging
from dpft.parallel.submitted import LOOPBACK_ADDRESS

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
THREADS = "OMP_NUM_THREADS"
TOGETHER = 1
"""Seconds within which processes count as ended at once."""


def launch(config: LaunchConfig, words: Sequence[str]) -> None:
    """Starts ``dpft`` of some words in several processes, and waits until all have ended.

    Args:
        config: How many, and how often again.
        words: The subcommand and what follows it.

    Raises:
        InputError: There are other processes already, or it cannot be said how many to start.
        SaidElsewhere: One has failed, and has said why.
        RunError: One was killed.
        SystemExit: This process was told to end; no process is left.
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
    """Returns how many processes to start.

    Raises:
        InputError: There are others already, or there is no accelerator to count by.
    """
    if world() is not None:
        raise InputError(
            "launch=local starts processes itself, got those of torchrun; drop one of the two."
        )
    processes = config.processes or torch.accelerator.device_count()
    if not processes:
        raise InputError(
            "launch.processes must say how many processes to start where there is no accelerator,"
            " got null; give launch.processes=2, say."
        )
    return processes


def ended(failures: Mapping[int, ProcessFailure]) -> DpftError:
    """Returns how processes have ended that the agent has found to fail.

    Those that failed later were ended by the agent, or because the others were gone.

    Args:
        failures: By rank.
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
                f"process {rank} of the run was killed by {name}; where a run has taken a step it"
                " goes on with resume=RUN, and by itself with launch.max_restarts=N."
            )
    codes = [code for code in early.values() if code > 0]
    return SaidElsewhere("an error", codes[0] if codes else 128 + signal.SIGTERM)


@contextmanager
def _as_before(processes: int) -> Iterator[None]:
    """Gives the processes their share of the cores; the agent's doings end with the block."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    variables = dict(os.environ)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault(THREADS, str(max(1, cores // processes)))
    try:
        with without_logging():
            yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)
