"""Of a search only the best trial is seen, under the bound of the whole search."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from dpft.commands.tune import publish, run
from dpft.config.tune import TuneCommand
from dpft.errors import StateError
from dpft.privacy.accounting.calibration import Calibration
from dpft.run_folder import trial_folder
from dpft.strict_model import as_json
from tests.commands.run_folders import make_plan, make_run, mechanism
from tests.commands.tuning.test_search import SEARCH
from tests.config.test_tune import command
from tests.reports.folders import write_run

BOUND = Calibration(accountant="rdp-selection", epsilon=7.99, grid="orders")
THREE = SEARCH.replace(calibration=BOUND, trials=SEARCH.trials * 3)


@pytest.fixture(scope="module")
def tune() -> TuneCommand:
    return command("task=e2e")


def trial_of(folder: Path, number: int) -> Path:
    """Make the folder of a finished trial with scores, a model and texts; return it."""
    plan = make_plan(is_trial=True, calibration=BOUND)
    spent = make_run(folder / "private" / "spent", plan=plan)
    record = json.loads((spent / "privacy.json").read_text())
    record["plan"]["calibration"] = as_json(BOUND) | {"target": 8.0}
    config = yaml.safe_load((spent / "config.yaml").read_text())
    trial = write_run(trial_folder(folder, number), privacy=record, train=config["train"])
    own = yaml.safe_load((trial / "config.yaml").read_text())
    own["privacy"] |= config["privacy"]
    (trial / "config.yaml").write_text(yaml.safe_dump(own))
    (spent / "ledger.jsonl").rename(trial / "ledger.jsonl")
    shutil.rmtree(spent)
    (trial / "model").mkdir()
    (trial / "model" / "model.safetensors").write_text("weights")
    (trial / "predictions.jsonl").write_text("texts")
    (trial / "log").write_text("heard by nobody")
    return trial


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """The folder of a search whose trial 0 has ended; the others left nothing."""
    folder = tmp_path / "run"
    trial_of(folder, 0)
    (folder / "private/tuning/trials.json").write_text("{}")
    return folder


def public(folder: Path) -> dict[str, Path]:
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in names.items() if not name.startswith("private")}


@pytest.mark.slow
def test_no_public_file_names_a_trial_or_tells_how_long_the_search_took(
    tune: TuneCommand, search: Path
) -> None:
    began = (search / "private/tuning/trials.json").stat().st_mtime_ns
    publish(tune, THREE, trial_folder(search, 0), search)
    assert "log" not in public(search)
    for name, path in public(search).items():
        assert not re.search(r"trial-|trials.json|private/tuning", name + path.read_text()), name
    assert {path.stat().st_mtime_ns for path in (search, *public(search).values())} == {began}


@pytest.mark.slow
def test_trust_rule_4_times_that_a_killed_publication_left_go_when_the_search_goes_on(
    tune: TuneCommand, search: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = (search / "private/tuning/trials.json").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", lambda *_, **__: None)
        publish(tune, THREE, trial_folder(search, 0), search)
    assert (search / "report.md").stat().st_mtime_ns > began
    run(tune.replace(resume=str(search)), search)
    assert {path.stat().st_mtime_ns for path in (search, *public(search).values())} == {began}


@pytest.mark.slow
def test_a_model_that_a_killed_publication_left_is_replaced_as_a_whole(
    tune: TuneCommand, search: Path
) -> None:
    (search / "model").mkdir()
    (search / "model" / "stale").touch()
    publish(tune, THREE, trial_folder(search, 0), search)
    assert {path.name for path in (search / "model").iterdir()} == {"model.safetensors"}


@pytest.mark.slow
def test_a_trial_that_overspent_is_not_published(tune: TuneCommand, search: Path) -> None:
    """As ``train resume=`` of a trial's folder with ``privacy.resume_overspend=true`` would do."""
    make_run(trial_folder(search, 2), *[mechanism()] * 6)
    with pytest.raises(StateError, match="6 noisy steps of 5") as info:
        publish(tune, THREE, trial_folder(search, 0), search)
    assert "trial-2" not in str(info.value)
    assert public(search) == {}
