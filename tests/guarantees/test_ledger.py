"""The ledger: every noisy step is on disk before a weight changes, and no damage is overlooked."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.guarantees.watched_runs import (
    RUN,
    STEPS,
    before_updates,
    edit,
    file_events,
    interrupted,
    ledger_lines,
    ledger_steps,
)
from tests.stories.tiny import Outcome, Workspace, make_workspace

CORRUPTED = 3
"""Exit code for damaged files."""


class Ended:
    """A finished run and what was observed of it."""

    def __init__(self, root: Path) -> None:
        self.workspace = make_workspace(root)
        self.folder = root / "run"
        self.steps_on_disk: list[int] = []
        """Noisy steps in the ledger as it was last synchronized, before each update."""
        ledger, synchronized = self.folder / "ledger.jsonl", b""

        def fsync(descriptor: int) -> None:
            nonlocal synchronized
            if ledger.exists() and os.path.samestat(os.fstat(descriptor), ledger.stat()):
                synchronized = ledger.read_bytes()

        def look(_: int) -> None:
            lines = map(json.loads, synchronized.splitlines())
            self.steps_on_disk.append(sum("step" in line for line in lines))

        with pytest.MonkeyPatch.context() as patch, before_updates(look), file_events() as events:
            patch.setattr(os, "fsync", fsync)
            outcome = self.workspace.run(*RUN, "hydra.run.dir=run")
        assert outcome.code == 0, outcome.err
        self.opened = {path for event, path in events if event == "open"}
        """Files that were opened to write."""
        self.renamed = {path for event, path in events if event == "rename"}
        """Files that got their names after they were written."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("ended"))


@pytest.fixture(scope="module")
def crashed(ended: Ended) -> Path:
    """A run with five steps in its ledger whose last checkpoint is that of step 4."""
    outcome = interrupted(ended.workspace, "crashed", *RUN, update=5)
    assert outcome.code == 130, outcome.err
    return ended.workspace.root / "crashed"


@pytest.fixture
def workspace(ended: Ended, crashed: Path, tmp_path: Path) -> Workspace:
    """Copy of both runs, ``run`` and ``crashed``, which a test may damage."""
    for folder in (ended.folder, crashed, *(ended.workspace.root / n for n in ("model", "data"))):
        shutil.copytree(folder, tmp_path / folder.name)
    return Workspace(tmp_path)


def account(workspace: Workspace, run: str) -> Outcome:
    return workspace.run("account", f"run={run}", "output=json")


def test_a_step_is_in_the_ledger_on_disk_before_a_weight_changes(ended: Ended) -> None:
    assert ended.steps_on_disk == list(range(1, STEPS + 1))


def test_a_finished_run_has_a_plan_every_step_and_a_closing_line(ended: Ended) -> None:
    first, *steps, last = ledger_lines(ended.folder)
    assert "plan" in first
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert last["closed"] is True and len(last["released"]) == 64


def test_files_are_written_under_a_temporary_name_and_renamed(ended: Ended) -> None:
    names = ("config.yaml", "privacy.json", "report.md")
    files = {ended.folder / name for name in names}
    assert all(path.exists() for path in files)
    assert files & ended.opened == set()
    assert files <= ended.renamed


@pytest.mark.slow
def test_undamaged_ledgers_are_accounted_for(workspace: Workspace) -> None:
    whole, part = (account(workspace, run) for run in ("run", "crashed"))
    assert (whole.code, part.code) == (0, 0), whole.err + part.err
    assert json.loads(whole.out)["epsilon"] == json.loads(part.out)["epsilon"]


@pytest.mark.slow
def test_an_edited_ledger_is_rejected(workspace: Workspace) -> None:
    """Twice the noise in every line would more than halve epsilon."""
    shutil.rmtree(workspace.root / "run" / "private")
    edit(workspace.root / "run" / "ledger.jsonl", '"noise_multiplier": 1', '"noise_multiplier": 2')
    outcome = account(workspace, "run")
    assert (outcome.code, outcome.out) == (CORRUPTED, "")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("account", "run=crashed"), ("train", "resume=crashed")])
def test_a_truncated_ledger_is_rejected(workspace: Workspace, command: tuple[str, ...]) -> None:
    """The checkpoint of step 4 knows that the two remaining steps are not all."""
    path = workspace.root / "crashed" / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    outcome = workspace.run(*command)
    assert (outcome.code, outcome.out) == (CORRUPTED, "")
    assert len(ledger_steps(path.parent)) == 2


@pytest.mark.slow
def test_a_run_without_its_closing_line_has_not_ended(workspace: Workspace) -> None:
    """So it is after a crash between the model's last file and the closing line."""
    run = workspace.root / "run"
    path = run / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for name in ("privacy.json", "metrics.json", "report.md", "report.html"):
        (run / name).unlink(missing_ok=True)
    for words in (("export", "run=run", "to=exported"), ("eval", "run=run")):
        outcome = workspace.run(*words)
        assert outcome.code != 0
        assert "training of 'run' has not ended" in outcome.err
    assert not (workspace.root / "exported").exists()


@pytest.mark.slow
def test_another_head_than_the_published_one_is_rejected(workspace: Workspace) -> None:
    head = json.loads(account(workspace, "run").out)["ledger"]["head"]
    assert workspace.run("account", "run=run", f"head={head}").code == 0
    other = head[:-1] + ("0" if head[-1] != "0" else "1")
    outcome = workspace.run("account", "run=run", f"head={other}")
    assert outcome.code != 0 and outcome.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("place", [-1, -2000])
def test_another_model_than_the_released_one_is_rejected(workspace: Workspace, place: int) -> None:
    """The closing line contains a digest of every tensor of the model."""
    assert workspace.run("export", "run=run", "to=exported").code == 0
    path = workspace.root / "run" / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    outcome = workspace.run("export", "run=run", "to=again")
    assert outcome.code == CORRUPTED
    assert not (workspace.root / "again").exists()
