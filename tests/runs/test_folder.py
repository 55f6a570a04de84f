from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.privacy.ledger import first_line
from dpft.runs.folder import refuse_used_folder, start_anew
from tests.privacy.test_ledger import WRITTEN


def test_a_folder_in_which_steps_were_taken_is_refused(tmp_path: Path) -> None:
    refuse_used_folder(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("")
    refuse_used_folder(tmp_path)
    (tmp_path / "ledger.jsonl").write_text('{"step": 1')
    with pytest.raises(InputError, match="has taken noisy steps; go on with it by dpft train res"):
        refuse_used_folder(tmp_path)


@pytest.mark.parametrize("line", ["", '{"plan": {"acc', first_line("a" * 32, WRITTEN) + "\n"])
def test_a_ledger_that_but_names_its_run_is_begun_anew(tmp_path: Path, line: str) -> None:
    """The first step's line never came, and no checkpoint is there to go on from."""
    (tmp_path / "ledger.jsonl").write_text(line)
    (tmp_path / "config.yaml").write_text("")
    refuse_used_folder(tmp_path)
    start_anew(tmp_path)
    assert not (tmp_path / "ledger.jsonl").exists()
    (tmp_path / "ledger.jsonl").write_text(f"{line}\n{{" if line else "damaged\n")
    with pytest.raises(InputError, match="has taken noisy steps"):
        refuse_used_folder(tmp_path)


def test_a_ledger_without_a_line_beside_a_checkpoint_is_of_a_run_that_can_go_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "ledger.jsonl").write_text("")
    (tmp_path / "private/checkpoints/step-00000000").mkdir(parents=True)
    with pytest.raises(InputError, match="resume="):
        refuse_used_folder(tmp_path)


def test_a_folder_whose_journal_has_a_step_is_refused_whatever_became_of_its_ledger(
    tmp_path: Path,
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/steps.jsonl").write_text('{"step')
    refuse_used_folder(tmp_path)
    (tmp_path / "private/steps.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(InputError, match="private/steps.jsonl exists: a run in this folder has"):
        refuse_used_folder(tmp_path)


def test_a_folder_without_a_ledger_starts_anew(tmp_path: Path) -> None:
    """An older checkpoint would count as newer than this run's first, an older model as its own."""
    for folder in ("model", "private/checkpoints/step-00000005"):
        (tmp_path / folder).mkdir(parents=True)
    files = ["config.yaml", "metrics.json", "report.md", "report.html", "notes.txt", "samples.md"]
    files += ["ledger.jsonl", "witness.json"]
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


def test_a_folder_that_was_no_run_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("mine")
    start_anew(tmp_path)
    assert (tmp_path / "report.md").exists()


@pytest.mark.parametrize("made", ["generated", "export", "human_eval.csv"])
def test_what_was_made_of_another_runs_model_is_not_taken_over(tmp_path: Path, made: str) -> None:
    """A run without privacy has no ledger; its records would lie under a private run's report."""
    (tmp_path / made).mkdir()
    refuse_used_folder(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(InputError, match=f"{made} exists: it is of an earlier run"):
        refuse_used_folder(tmp_path)
