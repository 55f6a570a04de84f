"""A run that torchrun starts anew: the folder that it goes on in, or begins in once more."""

from pathlib import Path

import pytest

from dpft.config.schema import TrainCommand
from dpft.parallel import processes
from dpft.runs import restarting
from dpft.runs.restarting import folder_of_run, restarted_command
from tests.runs.spending.run_folders import make_run


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


def test_a_restart_goes_on_in_the_folder_of_the_first_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert folder_of_run(Path("outputs/12-00-00")) == Path("outputs/12-00-00")
    for restarts in (1, 2):
        start(monkeypatch, restarts)
        assert folder_of_run(Path("outputs/12-05-00")) == Path("outputs/12-00-00")


def test_what_ended_before_it_had_a_folder_begins_in_the_restarts_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(monkeypatch, 1)
    assert folder_of_run(Path("b")) == Path("b")
    start(monkeypatch, 2)
    assert folder_of_run(Path("c")) == Path("b")


def test_another_run_by_the_same_agent_has_its_own_folder(store: Store) -> None:
    folder_of_run(Path("a"))
    assert folder_of_run(Path("b")) == Path("b")


def command(monkeypatch: pytest.MonkeyPatch, resume: str | None = None) -> TrainCommand:
    """Returns a command of which only what is read here is there."""
    made = object.__new__(TrainCommand)
    for name, value in {"resume": resume, "parallel": "as started"}.items():
        object.__setattr__(made, name, value)
    return made


def test_a_restart_before_the_first_ledger_line_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = command(monkeypatch)
    start(monkeypatch, 1)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "ledger.jsonl").touch()
    assert restarted_command(begins, tmp_path) is begins


def test_a_restart_after_a_ledger_line_resumes_with_the_words_of_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, begins = make_run(tmp_path / "run"), command(monkeypatch)
    found = list[str]()

    def resumed(folder: str, *_: object) -> TrainCommand:
        found.append(folder)
        return command(monkeypatch, resume=folder)

    monkeypatch.setattr(restarting, "resumed_configuration", resumed)
    monkeypatch.setattr(restarting, "replace", lambda made, **given: (made.resume, given))
    assert restarted_command(begins, folder) is begins
    start(monkeypatch, 1)
    assert restarted_command(begins, folder) == (str(folder), {"parallel": "as started"})
    assert found == [str(folder)]


def test_a_run_that_was_told_to_go_on_does_so_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = command(monkeypatch, resume=str(tmp_path))
    start(monkeypatch, 1)
    assert restarted_command(goes_on, tmp_path) is goes_on
