"""No two runs share a folder, and a run that was refused leaves none."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from dpft.cli import jobs
from dpft.cli.jobs import (
    RunFolders,
    note_root,
    remove_empty_folders,
    sweep_folder,
)
from dpft.cli.main import main


@pytest.fixture(autouse=True)
def nothing_noted() -> Iterator[None]:
    """Every test begins and ends as a command does: with no folder noted."""
    yield
    jobs._new_roots.clear()
    jobs._sweeps.clear()


def files_left() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


def test_only_folders_that_the_command_made_are_removed_and_only_empty_ones(
    tmp_path: Path,
) -> None:
    (tmp_path / "before").mkdir()
    note_root(str(tmp_path / "before"))
    for name in ("outputs/empty", "outputs/full"):
        note_root(str(tmp_path / name))
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outputs/full/report.md").touch()
    remove_empty_folders()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["before", "outputs", "outputs/full", "outputs/full/report.md"]


def test_a_sweep_of_nothing_leaves_not_even_its_own_record(tmp_path: Path) -> None:
    sweep = tmp_path / "outputs/multirun/now"
    jobs = [sweep / "0", sweep / "1"]
    callback = RunFolders()
    callback.on_multirun_start(OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}}))
    for job in jobs:
        job.mkdir(parents=True)
    (sweep / "multirun.yaml").touch()
    assert sweep_folder() == sweep
    remove_empty_folders([*jobs, *jobs])
    assert list(tmp_path.iterdir()) == []
    assert sweep_folder() is None


def test_a_folder_that_stood_before_is_kept(fake: SimpleNamespace) -> None:
    Path("mine").mkdir()
    assert main(["fake", "privacy.eps=-1", "hydra.run.dir=mine"]) == 2
    assert main(["fake", "privacy.eps=-1", "hydra.run.dir=mine/run"]) == 2
    assert files_left() == ["mine"]


def test_a_sweep_that_cannot_be_composed_leaves_nothing(fake: SimpleNamespace) -> None:
    assert main(["fake", "--multirun", "privacy.epz=1,2"]) == 2
    assert files_left() == []


def test_jobs_of_a_sweep_have_folders_of_their_own(fake: SimpleNamespace) -> None:
    assert main(["fake", "-m", "privacy.eps=3,8", "outcome=record"]) == 0
    (sweep,) = Path("outputs/multirun").glob("*/*")
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "multirun.yaml", "private"]


@pytest.mark.slow
def test_runs_within_one_second_have_folders_of_their_own(fake: SimpleNamespace) -> None:
    for _ in range(3):
        assert main(["fake", "privacy.eps=3", "outcome=record"]) == 0
    assert len(list(Path("outputs").glob("*/*"))) == 3
