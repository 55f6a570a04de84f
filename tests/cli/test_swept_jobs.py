"""The jobs of a sweep, in whatever processes they run: exit codes, folders, the bill."""

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn

from dpft.cli.main import main


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
    """Puts a launcher in the place of Hydra's own."""
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


def test_runs_in_other_processes_are_on_the_bill(
    fake: SimpleNamespace, other_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    billed = []
    monkeypatch.setattr(
        "dpft.runs.tuning_bill.write_tuning_bill",
        lambda sweep, folders: billed.append((sweep, folders)),
    )
    assert main(["fake", "-m", "hydra.sweep.dir=mine", "privacy.eps=3", "outcome=spend,done"]) == 0
    sweep = Path("mine").absolute()
    assert billed == [(sweep, [sweep / "0", sweep / "1"])]


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
    assert "symbolic link" in capsys.readouterr().err
    assert list(Path("elsewhere").iterdir()) == []


class BreakingLauncher(ForkingLauncher):
    """Has the first job run, and then loses the process of the second one."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        super().launch(job_overrides[:1], initial_job_idx)
        raise BrokenProcessPool("A worker was terminated.")


@pytest.mark.slow
def test_a_launcher_that_loses_a_process_is_one_sentence_and_the_bill_is_written(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch_by(BreakingLauncher, monkeypatch)
    monkeypatch.setattr(
        "dpft.runs.tuning_bill.write_tuning_bill",
        lambda sweep, folders: f"a bill of {[folder.name for folder in folders]}",
    )
    assert main(["fake", "-m", "privacy.eps=3", "outcome=spend,done"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "a bill of ['0']\n"
    assert captured.err.startswith("dpft: error: the launcher of this sweep lost a process (")
    assert captured.err.count("\n") == 1 and "hydra.launcher.n_jobs=1" in captured.err


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
