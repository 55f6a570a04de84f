import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpft.commands import interrupted_run
from dpft.commands.interrupted_run import automatically_resumed
from dpft.commands.new_run import (
    checked_out_commit,
    digest_of,
    origin,
    read_begun,
    refuse_used_folder,
    start_anew,
    write_begun,
)
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.privacy.ledger import first_line
from dpft.reports.sections import origin_rows, title
from dpft.strict_model import as_json
from tests.commands.run_folders import make_plan, make_run
from tests.config.test_conf import loaded
from tests.models import small
from tests.rejections import rejects
from tests.reports.plain import plain
from tests.reports.test_report import CONFIG, non_private

FIRST = first_line("a" * 32, make_plan()).text


def test_a_folder_in_which_steps_were_taken_is_refused(tmp_path: Path) -> None:
    refuse_used_folder(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("")
    refuse_used_folder(tmp_path)
    (tmp_path / "ledger.jsonl").write_text('{"step": 1')
    with rejects("hydra.run.dir", str(tmp_path)) as faults:
        refuse_used_folder(tmp_path)
    assert str(faults[0].hint).startswith("dpft train resume=")


@pytest.mark.parametrize("line", ["", '{"plan": {"acc', f"{FIRST}\n"])
def test_a_ledger_that_but_names_its_run_is_begun_anew(tmp_path: Path, line: str) -> None:
    """The first step's line never came, and no checkpoint is there to go on from."""
    (tmp_path / "ledger.jsonl").write_text(line)
    (tmp_path / "config.yaml").write_text("")
    refuse_used_folder(tmp_path)
    start_anew(tmp_path)
    assert not (tmp_path / "ledger.jsonl").exists()
    (tmp_path / "ledger.jsonl").write_text(f"{line}\n{{" if line else "damaged\n")
    with rejects("hydra.run.dir", str(tmp_path)):
        refuse_used_folder(tmp_path)


def test_a_ledger_without_a_line_beside_a_checkpoint_is_of_a_run_that_can_go_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "ledger.jsonl").write_text("")
    (tmp_path / "private/checkpoints/step-00000000").mkdir(parents=True)
    with rejects("hydra.run.dir", str(tmp_path)):
        refuse_used_folder(tmp_path)


def test_a_folder_whose_journal_has_a_step_is_refused_whatever_became_of_its_ledger(
    tmp_path: Path,
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/steps.jsonl").write_text('{"step')
    refuse_used_folder(tmp_path)
    (tmp_path / "private/steps.jsonl").write_text('{"step": 1}\n')
    with rejects("hydra.run.dir", str(tmp_path)) as faults:
        refuse_used_folder(tmp_path)
    assert "private/steps.jsonl" in faults[0].message


def test_a_folder_without_a_ledger_starts_anew(tmp_path: Path) -> None:
    """An older checkpoint would count as newer than this run's first, an older model as its own."""
    for folder in ("model", "private/checkpoints/step-00000005"):
        (tmp_path / folder).mkdir(parents=True)
    files = ["config.yaml", "metrics.json", "report.md", "report.html", "notes.txt", "samples.md"]
    files += ["ledger.jsonl"]
    private = ["diagnostics.jsonl", "steps.jsonl", "predictions.jsonl", "samples_validation.md"]
    private += ["audit_key", "white_box.jsonl", "audit/canaries.json"]
    (tmp_path / "private/audit").mkdir()
    for name in (*files, *(f"private/{name}" for name in private)):
        (tmp_path / name).write_text("old")
    start_anew(tmp_path)
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["config.yaml", "notes.txt", "private"]


def test_a_folder_that_is_no_runs_keeps_everything(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    start_anew(tmp_path)
    assert (tmp_path / "model").exists()


@pytest.mark.parametrize("made", ["generated", "export"])
def test_what_was_made_of_another_runs_model_is_not_taken_over(tmp_path: Path, made: str) -> None:
    """A run without privacy has no ledger; its records would lie under a private run's report."""
    (tmp_path / made).mkdir()
    refuse_used_folder(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with rejects("hydra.run.dir", str(tmp_path)) as faults:
        refuse_used_folder(tmp_path)
    assert str(tmp_path / made) in faults[0].message


origin_rows, title = plain(origin_rows), plain(title)


def test_a_run_is_dated_to_the_day_and_no_finer(tmp_path: Path) -> None:
    write_begun(tmp_path)
    begun = read_begun(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", begun.date or "")
    assert set(as_json(begun)) <= {"schema_version", "date", "versions", "commit"}
    assert stat.S_IMODE((tmp_path / "private/begun.json").stat().st_mode) == 0o600


def test_a_checkout_has_its_commit_and_any_other_folder_none(tmp_path: Path) -> None:
    assert checked_out_commit(tmp_path) is None
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert re.fullmatch(r"[0-9a-f]{40}", checked_out_commit(tmp_path) or "")


@pytest.mark.slow
def test_a_model_in_a_folder_is_written_down_by_its_last_name_and_type(tmp_path: Path) -> None:
    base = Path(small.save("bert", tmp_path / "secret" / "mine"))
    given = ["task=e2e", "model=local", f"model.path={base}", "privacy=none"]
    config = loaded("train", given)
    assert isinstance(config, TrainConfig)
    written = {**non_private(), **as_json(origin(config, read_begun(tmp_path)))}
    assert written["model"] == "mine (bert)"
    assert title(CONFIG, written).startswith("mine (bert) fine-tuned on ")
    assert ("model", "mine (bert)") in origin_rows(CONFIG, written)
    (base / "config.json").unlink()
    assert origin(config, read_begun(tmp_path)).model == "mine"


def command(**given: Any) -> TrainCommand:
    """Return the demo's command."""
    return loaded("train", ["experiment=demo", "privacy.eps=3"]).replace(**given)


@pytest.mark.slow
def test_a_command_without_auto_is_left_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for resume in (None, str(folder)):
        given = command(resume=resume)
        assert automatically_resumed(given, folder) is given


@pytest.mark.slow
def test_auto_begins_a_run_where_no_noisy_step_was_taken(tmp_path: Path) -> None:
    assert automatically_resumed(command(resume="auto"), tmp_path / "none") == command()
    (tmp_path / "config.yaml").touch()
    (tmp_path / "ledger.jsonl").touch()
    assert automatically_resumed(command(resume="auto"), tmp_path) == command()


def test_auto_resumes_a_run_of_the_same_settings_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = make_run(tmp_path / "run"), command(resume="auto")
    with rejects("resume", "auto") as faults:
        automatically_resumed(given, folder)
    assert faults[0].hint == f"dpft train resume={folder}"
    write_begun(folder, asked=digest_of(given.settings()))
    resumed = given.replace(resume=str(folder))
    monkeypatch.setattr(interrupted_run, "resumed_configuration", lambda *_: resumed)
    assert automatically_resumed(given, folder) == resumed
    others = given.replace(privacy=given.privacy.replace(eps=8.0))
    with rejects("resume", "auto"):
        automatically_resumed(others, folder)


@pytest.mark.slow
def test_auto_resumes_a_run_without_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no ledger, and would be deleted and begun again at each restart."""
    given = loaded("train", ["experiment=demo", "privacy=none", "resume=auto"])
    (tmp_path / "private/checkpoints/step-00000010").mkdir(parents=True)
    (tmp_path / "config.yaml").touch()
    write_begun(tmp_path, asked=digest_of(given.settings()))
    resumed = given.replace(resume=str(tmp_path))
    monkeypatch.setattr(interrupted_run, "resumed_configuration", lambda *_: resumed)
    assert automatically_resumed(given, tmp_path) == resumed


@pytest.mark.slow
@pytest.mark.parametrize("program", ["TORCHELASTIC", "SLURM"])
def test_a_restart_in_a_folder_without_a_run_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
) -> None:
    automatically_resumed(command(resume="auto"), tmp_path)
    assert not caplog.records
    monkeypatch.setenv(f"{program}_RESTART_COUNT", "1")
    automatically_resumed(command(resume="auto"), tmp_path)
    assert "all machines share" in caplog.text
