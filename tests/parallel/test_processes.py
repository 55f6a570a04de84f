"""Processes that cannot meet, and devices that there are too few of."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dpft.errors import InputError
from dpft.parallel import processes
from dpft.parallel.parallel_config import ParallelConfig
from dpft.parallel.ranks import Ranks
from tests.parallel.forked import on_ranks


@pytest.fixture
def listener(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[socket.socket]:
    """Another program that listens at the port of two processes; torch's traces are kept quiet."""
    monkeypatch.setattr(processes, "MEETING", timedelta(seconds=0.5))
    monkeypatch.setattr(processes, "INTERFACES", ())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        there = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        yield other
    for thread in threading.enumerate():
        if thread.name == processes.MEETING_THREAD:
            thread.join(5)


def refusal(monkeypatch: pytest.MonkeyPatch, rank: int) -> str:
    monkeypatch.setenv("RANK", str(rank))
    with pytest.raises(InputError) as error, processes.started(ParallelConfig(name="ddp")):
        pass
    return str(error.value)


def test_a_port_in_use_is_named(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = listener.getsockname()[1]
    assert refusal(monkeypatch, 0).startswith(f"MASTER_PORT={port} is in use by another program")


def test_who_waits_for_another_program_gives_up(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()
    assert "2 processes of a run must all come to MASTER_ADDR" in refusal(monkeypatch, 1)
    assert time.monotonic() - begun < 5


def times_of_a_slow_meeting(ranks: Ranks) -> tuple[float, float]:
    """When this rank was connected, the last one late, and when its block began."""
    leave = dist.destroy_process_group
    leave()
    # As after a restart by torchrun, whose agent still serves the store.
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="1")
    store_that_lives_on = processes._store_of_agent  # noqa: F841
    connect, connected = dist.init_process_group, list[float]()

    def connect_late(*args: object, **kwargs: object) -> None:
        connect(*args, **kwargs)
        time.sleep(0.5 * (ranks.rank == ranks.size - 1))
        connected.append(time.monotonic())

    dist.init_process_group = connect_late
    with processes.started(ParallelConfig(name="ddp", cpu_offload=True)):
        begun = time.monotonic()
        # The block around this one leaves a group as well.
        dist.destroy_process_group = lambda: None
    dist.destroy_process_group = leave
    return connected[0], begun


def test_no_rank_goes_on_before_all_have_met() -> None:
    """One that ended before would break the meeting of the others."""
    connected, begun = zip(*on_ranks(times_of_a_slow_meeting, 3), strict=True)
    assert max(connected) <= min(begun)


def test_each_process_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = list[int]()
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert processes.own_device(cuda, Ranks(3, 4, local_rank=1)) == torch.device("cuda:1")
    assert chosen == [1]
    assert processes.own_device(cpu, Ranks(3, 4, local_rank=3)) == cpu
    assert processes.own_device(cuda, Ranks()) == cuda
    with pytest.raises(InputError, match=r"a device for each process, got 2 for rank 2 of this"):
        processes.own_device(cuda, Ranks(2, 4, local_rank=2))
