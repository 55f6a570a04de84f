import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpft.training.trackers import WandbRun, WeightsAndBiases
from tests.rejections import rejects
from tests.training.trackers.reading import contains_word, wandb_records


class Failure(Exception):
    """What the stand-in for wandb raises."""


class Stand:
    """Stands in for the package wandb."""

    Error = Failure

    def __init__(self, folder: Path, *, key: bool = True, reachable: bool = True) -> None:
        self.key, self.reachable, self.folder = key, reachable, folder
        self.settings, self.reports = None, []

    def login(self, **_):
        self.reports.append(os.environ["WANDB_ERROR_REPORTING"])
        return self.key

    def Settings(self, **settings):  # noqa: N802
        return settings

    def init(self, *, config, settings):
        if not self.reachable:
            raise Failure("no such\nhost")
        self.config, self.settings = config, settings
        (self.folder / "logs").mkdir()
        return SimpleNamespace(dir=str(self.folder / "files"))


@pytest.fixture
def stand(tmp_path, monkeypatch) -> Stand:
    made = Stand(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    return made


PUBLIC = {"train": {"steps": 40}}


def test_nobody_logged_in_is_refused_before_anything_and_wandb_reports_no_errors(stand) -> None:
    WeightsAndBiases().check()
    stand.key = False
    WeightsAndBiases(mode="offline").check()
    with rejects("tracking", "wandb"):
        WeightsAndBiases().check()
    assert stand.reports == ["false", "false"]
    assert "WANDB_ERROR_REPORTING" not in os.environ


def test_a_server_that_cannot_be_reached_is_refused_in_one_sentence(stand, tmp_path) -> None:
    stand.reachable = False
    with rejects("tracking", "wandb") as faults:
        WeightsAndBiases().open(tmp_path, PUBLIC)
    assert "no such host" in str(faults[0])


def test_everything_wandb_records_by_itself_is_off_and_a_run_goes_on_under_its_id(
    stand, tmp_path
) -> None:
    WeightsAndBiases().open(tmp_path, PUBLIC)
    off = {"console": "off", "capture_loggers": {}, "sync_tensorboard": False, "save_code": False}
    names = ("code", "git", "job_creation")
    off |= {f"disable_{name}": True for name in names}
    off |= {f"x_disable_{name}": True for name in ("meta", "stats", "machine_info")}
    off |= {"x_save_requirements": False, "host": "", "program": ""}
    assert off.items() <= stand.settings.items()
    first, stand.folder = stand.settings["run_id"], tmp_path / "again"
    stand.folder.mkdir()
    (tmp_path / "wandb" / f"run-20260131_120000-{first}").mkdir(parents=True)
    WeightsAndBiases().open(tmp_path, PUBLIC)
    assert (stand.settings["run_id"], stand.settings["resume"]) == (first, "allow")
    assert len(first) == 8 and not (tmp_path / "logs").exists()


def test_results_stand_in_the_summary_and_points_have_their_step() -> None:
    rows, summary = [], {}
    run = SimpleNamespace(log=lambda values, **rest: rows.append((values, rest)), summary=summary)
    WandbRun(run).write(20, {"privacy/epsilon": 2.0})
    WandbRun(run).conclude(20, {"privacy/epsilon_reported": 2.5})
    assert rows == [({"privacy/epsilon": 2.0}, {"step": 20, "commit": True})]
    assert summary == {"privacy/epsilon_reported": 2.5}


@pytest.mark.slow
def test_an_offline_run_holds_the_points_and_nothing_of_the_machine(tmp_path) -> None:
    pytest.importorskip("wandb")
    tracker = WeightsAndBiases(mode="offline").open(tmp_path, PUBLIC)
    tracker.write(10, {"privacy/epsilon": 1.0})
    tracker.write(20, {"privacy/epsilon": 2.0})
    tracker.conclude(20, {"privacy/epsilon_reported": 2.5})
    tracker.close(failed=False)
    (path,) = tmp_path.rglob("*.wandb")
    assert [each for each in tmp_path.rglob("*") if each.is_file() or each.is_symlink()] == [path]
    assert path.parent.name.startswith("offline-run-")
    run_id = path.stem.removeprefix("run-")
    records = wandb_records(path)
    kinds = {record.WhichOneof("record_type") for record in records}
    assert kinds <= {"header", "run", "telemetry", "summary", "history", "exit"}
    history = [record.history for record in records if record.HasField("history")]
    keys = {(item.key or "/".join(item.nested_key)) for row in history for item in row.item}
    assert keys == {"privacy/epsilon", "_step", "_timestamp", "_runtime"}
    assert [row.step.num for row in history] == [10, 20]
    text = "\n".join(str(record) for record in records)
    for told in (socket.gethostname(), str(tmp_path), str(Path.home()), str(Path.cwd())):
        assert not contains_word(text, told)
    again = WeightsAndBiases(mode="offline").open(tmp_path, PUBLIC)
    again.write(30, {"privacy/epsilon": 3.0})
    again.close(failed=False)
    assert {path.stem for path in tmp_path.rglob("*.wandb")} == {f"run-{run_id}"}
