"""Jobs of a sweep, in any process: exit codes, folders, what they cost, the signals of submitit."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import distributions
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import MissingConfigException

from dpft.cli.jobs import (
    launch_error,
    requeued_if_preempted,
)
from dpft.cli.main import main
from dpft.commands.exit_codes import ExitStatus, termination_as_exit
from dpft.config.hydra_compose import as_input_error
from dpft.errors import InputError, RunError
from dpft.parallel.rank_environment import TERMINATED, SubmittedTask, termination_requests


class ForkingLauncher(BasicLauncher):
    """Runs each job in a process of its own, as other launchers do."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            child = os.fork()
            if child == 0:
                try:
                    super().launch([overrides], number)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        return []


@pytest.fixture
def other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a launcher such as ``hydra/launcher=joblib``."""
    launch_by(ForkingLauncher, monkeypatch)


def launch_by(launcher: type[BasicLauncher], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a launcher in the place of Hydra's own."""
    known = Plugins.instance().class_name_to_class
    name = f"{BasicLauncher.__module__}.{BasicLauncher.__qualname__}"
    monkeypatch.setitem(known, name, launcher)


@pytest.mark.slow
def test_jobs_in_other_processes_give_the_sweep_its_exit_code(
    fake: SimpleNamespace, other_processes: None
) -> None:
    assert main(["fake", "-m", "privacy.eps=3", "outcome=corrupt,done"]) == 3
    assert main(["fake", "-m", "privacy.eps=-1,3"]) == 2
    assert list(Path().iterdir()) == []
    assert main(["fake", "-m", "privacy.eps=3", "outcome=leave,record"]) == 1


@pytest.mark.slow
def test_a_later_sweep_into_the_same_folder_has_an_exit_code_of_its_own(
    fake: SimpleNamespace, other_processes: None
) -> None:
    words = ["fake", "-m", "hydra.sweep.dir=mine", "privacy.eps=3"]
    assert main([*words, "outcome=record,corrupt"]) == 3
    assert main([*words, "outcome=record"]) == 0


COST = "privacy: each run spent its own epsilon. For the total cost, run: dpft account runs=mine\n"


@pytest.mark.slow
def test_a_sweep_ends_with_the_command_that_computes_its_cost(
    fake: SimpleNamespace, other_processes: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fake", "-m", "hydra.sweep.dir=mine", "privacy.eps=3"]
    assert main([*words, "outcome=done"]) == 0
    assert "epsilon" not in capsys.readouterr().out
    assert main([*words, "outcome=spend,done"]) == 0
    assert capsys.readouterr().out.endswith(COST)


@pytest.mark.slow
def test_how_jobs_ended_is_the_owners_and_not_written_through_a_link(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fake", "-m", "privacy.eps=3", "outcome=record"]
    assert main([*words, "hydra.sweep.dir=mine"]) == 0
    assert stat.S_IMODE(Path("mine/private").stat().st_mode) == 0o700
    Path("linked").mkdir()
    Path("elsewhere").mkdir()
    Path("linked/private").symlink_to(Path("elsewhere").absolute())
    assert main([*words, "hydra.sweep.dir=linked"]) == 2
    assert "linked/private" in capsys.readouterr().err
    assert list(Path("elsewhere").iterdir()) == []


class BreakingLauncher(ForkingLauncher):
    """Has the first job run, and then loses the process of the second one."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        super().launch(job_overrides[:1], initial_job_idx)
        raise BrokenProcessPool("A worker was terminated.")


@pytest.mark.slow
def test_a_launcher_that_loses_a_process_is_one_sentence_and_the_cost_is_named(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch_by(BreakingLauncher, monkeypatch)
    words = ["hydra.sweep.dir=mine", "privacy.eps=3", "outcome=spend,done"]
    assert main(["fake", "-m", *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == COST
    assert captured.err.count("\n") == 1 and "hydra.launcher.n_jobs=1" in captured.err


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(
    not list(distributions(name="hydra-joblib-launcher")),
    reason="needs the plugin behind hydra/launcher=joblib: pip install hydra-joblib-launcher",
)
def test_joblibs_jobs_give_the_sweep_its_exit_code_and_leave_nothing(tmp_path: Path) -> None:
    """In a process of its own, since joblib's workers import what they run."""
    words = ["export", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "run=none,nowhere"]
    done = subprocess.run(
        [sys.executable, "-m", "dpft", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("dpft: error: ") == 2
    assert list(tmp_path.iterdir()) == []


def files_left() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.mark.slow
def test_a_folder_that_stood_before_is_kept(fake: SimpleNamespace) -> None:
    Path("mine").mkdir()
    assert main(["fake", "privacy.eps=-1", "hydra.run.dir=mine"]) == 2
    assert main(["fake", "privacy.eps=-1", "hydra.run.dir=mine/run"]) == 2
    assert files_left() == ["mine"]


@pytest.mark.slow
def test_a_sweep_that_cannot_be_composed_leaves_nothing(fake: SimpleNamespace) -> None:
    assert main(["fake", "--multirun", "privacy.epz=1,2"]) == 2
    assert files_left() == []


@pytest.mark.slow
def test_jobs_of_a_sweep_have_folders_of_their_own(fake: SimpleNamespace) -> None:
    assert main(["fake", "-m", "privacy.eps=3,8", "outcome=record"]) == 0
    (sweep,) = Path("outputs/multirun").glob("*/*")
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "multirun.yaml", "private"]


@pytest.mark.slow
def test_runs_within_one_second_have_folders_of_their_own(fake: SimpleNamespace) -> None:
    for _ in range(3):
        assert main(["fake", "privacy.eps=3", "outcome=record"]) == 0
    assert len(list(Path("outputs").glob("*/*"))) == 3


@pytest.fixture
def requeues() -> Iterator[list[int]]:
    """Signals for which submitit's handler was called."""
    called = list[int]()
    before = signal.signal(signal.SIGUSR2, lambda number, _: called.append(number))
    yield called
    signal.signal(signal.SIGUSR2, before)


def task(executor: str = "local") -> SubmittedTask:
    return SubmittedTask(
        job="17", executor=executor, rank=0, size=1, local_rank=0, nodes=1, address="", log=None
    )


def told(*numbers: int) -> Callable[[], int]:
    """Return a job that is sent signals in a step, ends the step and then itself."""

    def job() -> int:
        with termination_requests() as asked:
            for number in numbers:
                os.kill(os.getpid(), number)
            if asked():
                raise SystemExit(TERMINATED)
        return 0

    return job


def until_preempted(job: Callable[[], int], place: SubmittedTask | None) -> int:
    outcome = ExitStatus()
    with requeued_if_preempted(outcome, place):
        outcome.exit_code = job()
    return outcome.exit_code


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


@pytest.mark.slow
def test_a_preemption_may_follow_sigterm(requeues: list[int]) -> None:
    later = Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    later.start()
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
    assert said == "dpft: the job could not be requeued: timed-out too many times.\n"


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
    nodes = ValueError("LocalExecutor can use only one node. Use nodes=1")
    for error, key in ((missing, "hydra/launcher"), (nodes, "hydra.launcher.nodes")):
        said = launch_error(error)
        assert isinstance(said, InputError) and said.faults[0].key == key


@pytest.mark.parametrize("name", ["submitit_slurm", "submitit_local", "joblib"])
def test_a_launcher_that_is_not_installed_is_named_with_what_installs_it(name: str) -> None:
    error = MissingConfigException("", f"hydra/launcher/{name}", ["basic"])
    plugin = name.partition("_")[0]
    (fault,) = as_input_error(error, []).faults
    assert (fault.key, fault.value) == ("hydra/launcher", name)
    assert f"pip install hydra-{plugin}-launcher==1." in str(fault.hint)
