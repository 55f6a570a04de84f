"""How many processes dpft starts itself, and what it makes of the way they end."""

import os
import signal

import pytest
import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dpft.errors import InputError, RunError, SaidElsewhere
from dpft.parallel import processes
from dpft.parallel.parallel_config import LaunchConfig
from dpft.parallel.processes import ended, launch, number_of_processes

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
    assert "process 1 of the run was killed by SIGKILL" in str(found)


def test_a_process_that_the_agent_had_to_kill_later_is_not_the_reason() -> None:
    assert ended({0: failure(2), 1: failure(-9, seconds=30)}).exit_code == 2


def test_as_many_processes_as_devices_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert number_of_processes(LOCAL) == 2
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert number_of_processes(LaunchConfig(name="local")) == 4
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"launch\.processes must say how many .* got null"):
        number_of_processes(LaunchConfig(name="local"))


def test_processes_of_torchrun_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="launch=local starts processes itself, got those of torc"):
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


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"name": "slurm"}, {"processes": 0}, {"max_restarts": -1}):
        with pytest.raises(InputError, match=r"^launch"):
            LaunchConfig(**wrong)  # type: ignore[arg-type]
