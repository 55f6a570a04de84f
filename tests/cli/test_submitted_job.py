"""A job that submitit runs: how its signals end it, and what is said of a launcher that cannot."""

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from hydra.errors import MissingConfigException

from dpft.cli import jobs
from dpft.cli.jobs import launch_error, until_preempted
from dpft.config.composing import as_input_error
from dpft.errors import InputError, RunError
from dpft.parallel.rank_environment import TERMINATED, Task, termination_requests
from dpft.runs.exit_codes import termination_as_exit


@pytest.fixture
def requeues() -> Iterator[list[int]]:
    """Signals for which submitit's handler was called."""
    called = list[int]()
    before = signal.signal(signal.SIGUSR2, lambda number, _: called.append(number))
    yield called
    signal.signal(signal.SIGUSR2, before)


def task(executor: str = "local") -> Task:
    return Task(
        job="17", executor=executor, rank=0, size=1, local_rank=0, nodes=1, address="", log=None
    )


def told(*numbers: int) -> Callable[[], int]:
    """Returns a job that is sent signals in a step, ends the step and then itself."""

    def job() -> int:
        with termination_requests() as asked:
            for number in numbers:
                os.kill(os.getpid(), number)
            if asked():
                raise SystemExit(TERMINATED)
        return 0

    return job


@pytest.mark.parametrize(
    ("numbers", "requeued"),
    [
        ([signal.SIGUSR2], True),
        ([signal.SIGTERM, signal.SIGUSR2], True),
        ([signal.SIGTERM], False),
    ],
)
def test_submitits_signal_alone_requeues_a_job_after_its_step(
    requeues: list[int], numbers: list[int], requeued: bool
) -> None:
    assert until_preempted(told(*numbers), task()) == TERMINATED
    assert requeues == [signal.SIGUSR2] * requeued


def test_a_preemption_may_follow_sigterm(
    requeues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGUSR2))
    assert until_preempted(told(signal.SIGTERM), task("slurm")) == TERMINATED
    assert requeues == [signal.SIGUSR2]


def test_a_job_that_loads_is_requeued_at_once(requeues: list[int]) -> None:
    def job() -> int:
        os.kill(os.getpid(), signal.SIGUSR2)
        raise AssertionError("the signal ends it")

    with termination_as_exit():
        assert until_preempted(job, task()) == TERMINATED
    assert requeues == [signal.SIGUSR2]


def test_a_job_that_ends_by_itself_is_not_requeued(requeues: list[int]) -> None:
    assert until_preempted(told(), task()) == 0
    os.kill(os.getpid(), signal.SIGUSR2)
    assert requeues == []


def test_a_job_that_submitit_does_not_requeue_is_terminated_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("timed-out too many times.")

    before = signal.signal(signal.SIGUSR2, refuse)
    try:
        assert until_preempted(told(signal.SIGUSR2), task()) == TERMINATED
    finally:
        signal.signal(signal.SIGUSR2, before)
    said = capsys.readouterr().err
    assert said == "dpft: the job is not requeued: timed-out too many times.\n"


def test_outside_of_a_task_submitits_signal_is_left_alone(requeues: list[int]) -> None:
    assert until_preempted(told(signal.SIGUSR2), None) == 0
    assert requeues == [signal.SIGUSR2]


def test_sbatchs_own_words_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Submitit prints them, so dpft's sentence does not."""
    utils = pytest.importorskip("submitit", reason="needs submitit").core.utils
    words = "sbatch: error: invalid partition specified: gold"
    program = f"import sys; sys.exit({words!r})"
    with pytest.raises(utils.FailedJobError) as raised:
        utils.CommandFunction([sys.executable, "-c", program], verbose=False)()
    error = launch_error(raised.value)
    assert isinstance(error, InputError)
    assert f"{capsys.readouterr().err}{error}".count(words) == 1
    assert isinstance(launch_error(utils.UncompletedJobError("gone")), RunError)


def test_other_errors_of_a_launcher_are_not_touched() -> None:
    assert launch_error(RuntimeError("something else")) is None
    missing = RuntimeError('Could not detect "srun", are you indeed on a slurm cluster?')
    assert "needs Slurm's commands srun and sbatch" in str(launch_error(missing))
    nodes = ValueError("LocalExecutor can use only one node. Use nodes=1")
    assert "hydra.launcher.nodes must be 1" in str(launch_error(nodes))


@pytest.mark.parametrize("name", ["submitit_slurm", "submitit_local", "joblib"])
def test_a_launcher_that_is_not_installed_is_named_with_what_installs_it(name: str) -> None:
    error = MissingConfigException("", f"hydra/launcher/{name}", ["basic"])
    plugin = name.partition("_")[0]
    said = f"hydra/launcher={name} needs a plugin of Hydra; pip install hydra-{plugin}-launcher==1."
    assert str(as_input_error(error, [])).startswith(said)
