"""A model is handed on into a new folder, whole or not at all, with what it guarantees."""

from pathlib import Path

import pytest

from dpft.commands import export as export_module
from dpft.commands.export import export, new_folder, whole_or_absent
from dpft.config.schema import ExportConfig
from tests.rejections import rejects


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with a model, as far as the choice of a new folder looks."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "report.md").touch()
    return tmp_path / "run"


def test_without_to_the_model_goes_into_the_runs_own_folder(run: Path) -> None:
    assert new_folder(run, None) == run / "export"
    assert new_folder(run, str(run.parent / "handed/on")) == run.parent / "handed/on"


@pytest.mark.parametrize(
    "to",
    [".", "link", "report.md/x", "model/x", "link/x"],
    ids=["exists", "link", "below a file", "in the model", "in the model by a link"],
)
def test_a_folder_that_is_there_or_in_the_model_is_refused(run: Path, to: str) -> None:
    (run / "link").symlink_to(run / "model")
    with rejects("to", str(run / to)):
        new_folder(run, str(run / to))


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "handed" / "on"
    with whole_or_absent(target) as partial:
        (partial / "weights").touch()
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["weights"]
    assert list(target.parent.iterdir()) == [target]


def test_what_a_killed_export_left_is_no_part_of_the_next(tmp_path: Path) -> None:
    target = tmp_path / "on"
    (tmp_path / ".on.partial").mkdir()
    (tmp_path / ".on.partial" / "stale").touch()
    with whole_or_absent(target):
        pass
    assert list(tmp_path.rglob("*")) == [target]


def test_an_export_that_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"), whole_or_absent(tmp_path / "on") as partial:
        (partial / "weights").touch()
        raise OSError("No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_chosen_before_the_model_is_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "saved_run", lambda _: None)
    with rejects("to", str(run)):
        export(ExportConfig(run=str(run), to=str(run), merge=True))
    assert not (run / "private").exists()
