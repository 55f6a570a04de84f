"""Processes that cannot meet, and devices that there are too few of."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dpft.errors import RunError, SaidElsewhere
from dpft.parallel import processes
from dpft.parallel.parallel_config import LaunchConfig, ParallelConfig
from dpft.parallel.processes import ended, launch, number_of_processes
from dpft.parallel.ranks import Ranks
from tests.parallel.forked import on_ranks
from tests.rejections import rejects


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


def test_a_port_in_use_is_named(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = listener.getsockname()[1]
    monkeypatch.setenv("RANK", "0")
    with rejects("MASTER_PORT", str(port)), processes.started(ParallelConfig(name="ddp")):
        pass


@pytest.mark.slow
def test_who_waits_for_another_program_gives_up(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()
    monkeypatch.setenv("RANK", "1")
    with rejects("MASTER_ADDR"), processes.started(ParallelConfig(name="ddp")):
        pass
    assert time.monotonic() - begun < 5


def times_of_a_slow_meeting(ranks: Ranks) -> tuple[float, float]:
    """When this rank was connected, the last one late, and when its block began."""
    store_that_lives_on = dist.distributed_c10d._get_default_store()  # noqa: F841
    leave = dist.destroy_process_group
    leave()
    # As after a restart by torchrun, whose agent still serves the store.
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="1")
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


@pytest.mark.slow
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
    with rejects("train.device", "cuda"):
        processes.own_device(cuda, Ranks(2, 4, local_rank=2))


LOCAL = LaunchConfig(name="local", processes=2)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def failure(code: int, seconds: int = 0) -> ProcessFailure:
    made = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file=os.devnull)
    made.timestamp = 1000 + seconds
    return made


@pytest.mark.parametrize(
    ("codes", "code"),
    [({0: 2, 1: 2}, 2), ({0: 3, 1: -15}, 3), ({1: 143, 0: 143}, 143), ({1: 1}, 1), ({1: -15}, 143)],
)
def test_the_exit_code_is_that_of_the_processes(codes: dict[int, int], code: int) -> None:
    found = ended({rank: failure(each) for rank, each in codes.items()})
    assert isinstance(found, SaidElsewhere)
    assert (found.exit_code, found.to_say) == (code, None)


def test_a_killed_process_is_named_also_where_others_ended_because_of_it() -> None:
    found = ended({0: failure(1), 1: failure(-9)})
    assert isinstance(found, RunError)
    assert "1" in str(found) and "SIGKILL" in str(found)


def test_a_process_that_the_agent_had_to_kill_later_is_not_the_reason() -> None:
    assert ended({0: failure(2), 1: failure(-9, seconds=30)}).exit_code == 2


def test_as_many_processes_as_devices_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert number_of_processes(LOCAL) == 2
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert number_of_processes(LaunchConfig(name="local")) == 4
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    with rejects("launch.processes"):
        number_of_processes(LaunchConfig(name="local"))


def test_processes_of_torchrun_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with rejects("launch", "local"):
        launch(LOCAL, [])


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ChildFailedError("dpft", {0: failure(2)}), SaidElsewhere, 2),
        (SignalException("", signal.SIGTERM), SystemExit, 143),
        (SignalException("", signal.SIGINT), SystemExit, 130),
    ],
)
def test_nothing_of_the_agent_is_left(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[BaseException], code: int
) -> None:
    """It sets variables and signal handlers, and the words are for Python."""
    started = list[tuple[str, ...]]()

    def agent(config: processes.api.LaunchConfig, program: str) -> object:
        def run(*words: str) -> None:
            started.append(words)
            assert config.nproc_per_node == 2
            assert os.environ["OMP_NUM_THREADS"] != ""
            os.environ["LEFT"] = "1"
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise error

        return run

    monkeypatch.setattr(processes.api, "elastic_launch", agent)
    variables, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    with pytest.raises(kind) as raised:
        launch(LOCAL, ["train", "task=e2e"])
    assert getattr(raised.value, "exit_code", getattr(raised.value, "code", None)) == code
    assert started == [("-m", "dpft", "train", "task=e2e")]
    assert (dict(os.environ), signal.getsignal(signal.SIGTERM)) == (variables, handler)
