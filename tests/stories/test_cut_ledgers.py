"""A ledger's tail is cut: every command that reads the run's folder refuses it (audit of main)."""

import json
import shutil
from pathlib import Path

import pytest

from tests.stories.test_resume import RUN, broken
from tests.stories.tiny import Workspace, make_workspace

pytestmark = pytest.mark.slow

UNSCORED = (*RUN, "eval.enabled=false")
LONGER = ("train.steps=12", "train.checkpoint_every=4", "eval.enabled=false")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Run ``whole``, and ``crashed``, broken off after step 7 with a checkpoint of step 4."""
    made = make_workspace(tmp_path_factory.mktemp("cut"))
    made.finished(*UNSCORED, "hydra.run.dir=whole")
    with pytest.MonkeyPatch.context() as patch:
        crashed = broken(made, patch, "crashed", KeyboardInterrupt(), *LONGER, call=7)
    assert crashed.code == 130, crashed.err
    return made


@pytest.fixture
def crashed(workspace: Workspace) -> Path:
    """A copy of the crashed run."""
    folder = workspace.root / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(workspace.root / "crashed", folder)


def cut(folder: Path, name: str, lines: int) -> None:
    path = folder / name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def account(workspace: Workspace, *given: str) -> dict:
    outcome = workspace.run("account", "run=copy", "output=json", *given)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.mark.parametrize("command", ["resume", "resume in another environment", "run", "runs"])
def test_trust_rule_9_a_ledger_cut_by_two_lines_is_refused(
    workspace: Workspace, crashed: Path, command: str
) -> None:
    """It took 14 noisy steps and reported 12; ``account run=`` told less with no word."""
    cut(crashed, "ledger.jsonl", 6)
    words = {
        "resume": ("train", "resume=copy"),
        "resume in another environment": ("train", "resume=copy", "train.micro_batch_size=2"),
        "run": ("account", "run=copy"),
        "runs": ("account", "runs=[copy]"),
    }[command]
    outcome = workspace.run(*words)
    assert (outcome.code, outcome.out) == (3, "")
    assert "ledger.jsonl, line 7: copy/private/steps.jsonl has 7 noisy steps" in outcome.err
    assert outcome.err.count("\n") == 1
    assert len((crashed / "ledger.jsonl").read_text().splitlines()) == 6


def test_trust_rule_9_a_ledger_cut_by_one_line_has_the_step_counted_all_the_same(
    workspace: Workspace, crashed: Path
) -> None:
    """Seven steps were taken, six of them stand in the ledger, and eight more are to be taken."""
    whole = account(workspace)
    cut(crashed, "ledger.jsonl", 7)
    found = account(workspace)
    assert (found["steps_taken"], found["epsilon"]) == (7, whole["epsilon"])
    assert any("has one step more than the ledger" in warning for warning in found["warnings"])
    resumed = workspace.run("train", "resume=copy", "train.micro_batch_size=2")
    assert resumed.code == 0, resumed.err
    record = json.loads((crashed / "privacy.json").read_text())
    assert (record["plan"]["steps"], record["steps_taken"]) == (12, 7 + 8)
    entries = (crashed / "private" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(entry)["step"] for entry in entries] == list(range(1, 16))


def test_a_ledger_cut_to_the_checkpoint_is_refused_by_its_journal(
    workspace: Workspace, crashed: Path
) -> None:
    """Of 2.329 it told 1.806."""
    cut(crashed, "ledger.jsonl", 5)
    outcome = workspace.run("account", "run=copy")
    assert (outcome.code, outcome.out) == (3, "")
    assert "has 7 noisy steps" in outcome.err


def test_without_private_the_end_of_an_unclosed_ledger_is_unproven(
    workspace: Workspace, crashed: Path
) -> None:
    head = account(workspace)["ledger"]["head"]
    assert account(workspace)["ledger"]["end"] == "private/"
    shutil.rmtree(crashed / "private")
    lodged = account(workspace, f"head={head}")
    assert lodged["ledger"]["head_checked"] is True
    assert lodged["ledger"]["end"] == "unproven", "the run may have gone on behind that head"
    cut(crashed, "ledger.jsonl", 5)
    found = account(workspace)
    assert found["ledger"]["end"] == "unproven"
    assert any("the ledger's end is unproven" in warning for warning in found["warnings"])
    table = workspace.run("account", "run=copy").out
    assert "end       unproven" in table and "the ledger's end is unproven" in table
    together = workspace.run("account", "runs=[copy,whole]").out
    assert "copy: the ledger's end is unproven" in together


@pytest.mark.parametrize("lines", [4, 6])
@pytest.mark.parametrize("command", ["resume", "run", "eval", "report", "export"])
def test_a_journal_that_is_not_the_ended_ledgers_is_refused_by_every_reader(
    workspace: Workspace, command: str, lines: int
) -> None:
    """Six entries of a run of five steps; or four, as where the ledger was added to."""
    folder = workspace.root / "ended"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(workspace.root / "whole", folder)
    journal = folder / "private" / "steps.jsonl"
    if lines == 6:
        journal.write_text(journal.read_text() + '{"step": 6}\n')
    cut(folder, "private/steps.jsonl", lines)
    words = {
        "resume": ("train", "resume=ended"),
        "run": ("account", "run=ended"),
        "eval": ("eval", "run=ended"),
        "report": ("report", "ended"),
        "export": ("export", "run=ended"),
    }[command]
    outcome = workspace.run(*words)
    assert (outcome.code, outcome.out) == (3, ""), outcome.err
    assert "private/steps.jsonl" in outcome.err and outcome.err.count("\n") == 1


def test_a_folder_whose_journal_has_steps_is_no_place_for_another_run(
    workspace: Workspace, crashed: Path
) -> None:
    (crashed / "ledger.jsonl").unlink()
    shutil.rmtree(crashed / "private" / "checkpoints")
    sentence = workspace.refusal("train", *RUN, "hydra.run.dir=copy")
    assert "copy/private/steps.jsonl exists" in sentence
