"""What processes beside the first one say, which is nothing, and when they speak all the same."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from dpft.parallel.parallel_config import ParallelConfig, World, check_start, world
from dpft.parallel.rank_environment import (
    PORTS,
    submitted_task,
    termination_requests,
    torchrun_environment,
)
from tests.parallel.silent_program import PROGRAM
from tests.rejections import rejects


def outcome(**environment: str) -> subprocess.CompletedProcess[str]:
    """Return what a program says that prints by every way there is."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.slow
def test_the_first_process_speaks() -> None:
    done = outcome(RANK="0", WORLD_SIZE="2")
    assert sorted(done.stdout.split()) == ["child", "print"]
    assert done.stderr.split() == ["descriptor", "log", "dpft:", "error:", "wrong", "after"]
    assert done.returncode == 2


@pytest.mark.slow
def test_another_process_says_nothing_but_the_error_that_it_ends_with() -> None:
    done = outcome(RANK="1", WORLD_SIZE="2")
    assert done.stdout == ""
    assert done.stderr.split() == ["waited", "dpft:", "error:", "wrong", "after"]
    assert done.returncode == 2


@pytest.mark.slow
def test_one_process_alone_speaks() -> None:
    assert outcome(RANK="1", WORLD_SIZE="1").stdout != ""


SLURM = {
    "SUBMITIT_EXECUTOR": "slurm",
    "SLURM_JOB_ID": "17",
    "SLURM_NTASKS": "16",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
LOCAL = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_JOB_ID": "4711",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_LOCALID": "1",
}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has started this process together with others."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SUBMITIT_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def start(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Make this process a task of a job."""
    pytest.importorskip("submitit", reason="needs submitit: pip install hydra-submitit-launcher")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_task_of_slurm_has_the_place_that_torchrun_would_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(monkeypatch, SLURM)
    with torchrun_environment(submitted_task()):
        assert world() == World(rank=11, size=16, local_rank=3, local_size=8)
        assert os.environ["MASTER_ADDR"] == "gpu07"
        assert int(os.environ["MASTER_PORT"]) in PORTS
        assert check_start(ParallelConfig(name="ddp")) == world()
        with rejects("parallel", "none"):
            check_start(ParallelConfig())
    assert world() is None


def test_all_tasks_of_a_job_meet_at_one_port_and_those_of_another_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def port(**variables: str) -> str:
        start(monkeypatch, SLURM | variables)
        with torchrun_environment(submitted_task()):
            return os.environ["MASTER_PORT"]

    array = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"}
    assert port(SLURM_PROCID="0") == port(SLURM_PROCID="15")
    assert len({port(), port(**array), port(**array | {"SLURM_ARRAY_TASK_ID": "1"})}) == 3
    assert port(MASTER_PORT="29500") == "29500"


def test_a_task_on_this_machine_meets_the_others_on_its_loopback_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(monkeypatch, LOCAL)
    task = submitted_task()
    assert task is not None and task.job == "local:4711"
    with torchrun_environment(task):
        there = world()
        assert there == World(rank=1, size=2, local_rank=1, local_size=2)
        assert there.on_one_node
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"


def test_one_task_alone_and_processes_of_torchrun_within_one_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(monkeypatch, LOCAL | {"SUBMITIT_LOCAL_NTASKS": "1"})
    with torchrun_environment(submitted_task()):
        assert world() is None
    start(monkeypatch, LOCAL | {"RANK": "0", "WORLD_SIZE": "4"})
    with torchrun_environment(submitted_task()):
        assert world() == World(rank=0, size=4, local_rank=0, local_size=4)


@pytest.mark.parametrize("executor", [None, "debug"])
def test_who_is_no_task_needs_no_submitit(
    monkeypatch: pytest.MonkeyPatch, executor: str | None
) -> None:
    """Also in a shell that Slurm has given, whose variables are those of a job."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SUBMITIT_EXECUTOR")
    if executor is not None:
        monkeypatch.setenv("SUBMITIT_EXECUTOR", executor)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert submitted_task() is None
    with torchrun_environment(submitted_task()):
        assert world() is None


def test_inside_the_block_a_termination_is_only_noted():
    before = signal.getsignal(signal.SIGTERM)
    with termination_requests() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_is_told_of_no_signal():
    answers = []

    def elsewhere():
        with termination_requests() as asked:
            answers.append(asked())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert answers == [False]
