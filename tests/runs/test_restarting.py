"""A run that torchrun starts anew: the folder that it goes on in, or begins in once more."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpft.config.schema import TrainCommand
from dpft.errors import InputError
from dpft.parallel import processes
from dpft.runs import folder as folders
from dpft.runs.folder import digest_of, folder_of_run, keep_folder, restarted_command, write_begun
from tests.config.test_conf import loaded
from tests.runs.run_folders import make_run


class Store(dict[str, str]):
    """The agent's store, which outlives its processes."""

    def check(self, names: list[str]) -> bool:
        return all(name in self for name in names)

    def get(self, name: str) -> bytes:  # type: ignore[override]
        return self[name].encode()

    set = dict.__setitem__


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store, and processes that are started for the first time."""
    made = Store()
    monkeypatch.setattr(processes, "_store_of_agent", made)
    start(monkeypatch, 0)
    return made


def start(monkeypatch: pytest.MonkeyPatch, restarts: int) -> None:
    there = {"RANK": 0, "WORLD_SIZE": 2, "TORCHELASTIC_RESTART_COUNT": restarts}
    for name, value in there.items():
        monkeypatch.setenv(name, str(value))


def begun(folder: Path) -> Path:
    """A run's folder, whose processes have told the agent of it."""
    folder.mkdir()
    keep_folder(folder)
    return folder


def test_a_restart_goes_on_in_the_folder_of_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later, begins = begun(tmp_path / "12-00"), tmp_path / "12-05", command()
    assert folder_of_run(begins, later) == later, "these processes are started for the first time"
    for restarts in (1, 2):
        start(monkeypatch, restarts)
        assert folder_of_run(begins, later) == first


def test_what_ended_before_it_had_a_folder_begins_in_the_restarts_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(monkeypatch, 1)
    assert folder_of_run(command(), Path("b")) == Path("b")


def test_a_run_that_was_told_to_go_on_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "another")
    start(monkeypatch, 1)
    goes_on = command(resume="run")
    assert folder_of_run(goes_on, Path("run")) == Path("run")
    assert restarted_command(goes_on, tmp_path) is goes_on


def test_a_folder_that_is_gone_or_anothers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may have written to the agent's store, and steps were spent in a folder that went."""
    folder = begun(tmp_path / "run")
    start(monkeypatch, 1)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(InputError, match="is not one of yours"):
        folder_of_run(command(), tmp_path / "new")
    monkeypatch.undo()
    start(monkeypatch, 1)
    monkeypatch.setattr(processes, "_store_of_agent", Store())
    keep_folder(tmp_path / "gone")
    with pytest.raises(InputError, match="where the first process runs"):
        folder_of_run(command(), tmp_path / "new")


def command(**given: Any) -> TrainCommand:
    """Returns the demo's command."""
    return replace(loaded("train", ["experiment=demo", "privacy.eps=3"]), **given)


def test_a_restart_before_the_first_ledger_line_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = command()
    start(monkeypatch, 1)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "ledger.jsonl").touch()
    assert restarted_command(begins, tmp_path) is begins


def test_a_restart_after_a_ledger_line_goes_on_with_the_run_of_the_same_words_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, begins = make_run(tmp_path / "run"), command()
    assert restarted_command(begins, folder) is begins
    start(monkeypatch, 1)
    with pytest.raises(InputError, match="begun by other words"):
        restarted_command(begins, folder)
    write_begun(folder, asked=digest_of(begins.settings()))
    resumed = replace(begins, resume=str(folder))
    monkeypatch.setattr(folders, "resumed_configuration", lambda *_: resumed)
    assert restarted_command(begins, folder) == resumed
    others = replace(begins, privacy=replace(begins.privacy, eps=8.0))
    with pytest.raises(InputError, match="begun by other words"):
        restarted_command(others, folder)


@pytest.fixture
def requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that the job of this process has begun before."""
    monkeypatch.setattr(folders, "submitted_job", lambda: "slurm:17")
    folder = make_run(tmp_path / "run")
    write_begun(folder, asked=digest_of(command().settings()), job="slurm:17")
    return folder


def test_a_requeued_job_goes_on_with_the_run_of_the_same_words_alone(
    requeued: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = command()
    resumed = replace(begins, resume=str(requeued))
    monkeypatch.setattr(folders, "resumed_configuration", lambda *_: resumed)
    assert restarted_command(begins, requeued) == resumed
    others = replace(begins, privacy=replace(begins.privacy, eps=8.0))
    with pytest.raises(InputError, match="begun by other words"):
        restarted_command(others, requeued)


@pytest.mark.parametrize("job", [None, "slurm:18", "local:17"])
def test_another_job_or_a_start_by_hand_does_not_go_on(
    requeued: Path, monkeypatch: pytest.MonkeyPatch, job: str | None
) -> None:
    begins = command()
    monkeypatch.setattr(folders, "submitted_job", lambda: job)
    assert restarted_command(begins, requeued) is begins


def test_a_requeued_job_does_not_go_on_in_a_folder_of_anothers(
    requeued: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = command()
    monkeypatch.setattr(os, "getuid", lambda: requeued.stat().st_uid + 1)
    assert restarted_command(begins, requeued) is begins
