"""A full disk and a folder that can no longer be written to, on a real file system of its own."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpft.commands import closing_summary as run_ending
from dpft.commands import train as train_command
from dpft.privacy.journal import JournaledLedger
from dpft.privacy.ledger import read_ledger
from dpft.training import training_run
from dpft.training.checkpoint import checkpoints, read_checkpoint
from tests.stories.test_resume import RUN, files
from tests.stories.tiny import Outcome, Workspace, make_workspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    """A workspace with a finished run ``whole``."""
    made = make_workspace(tmp_path_factory.mktemp("disk"))
    made.finished(*RUN, "hydra.run.dir=whole")
    return made


@pytest.fixture
def disk(workspace: Workspace) -> Iterator[Path]:
    """A file system of 8 MB, mounted at ``disk``."""
    folder = workspace.root / "disk"
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def fill(disk: Path, left: int) -> None:
    """Write to the disk until ``left`` bytes are free."""
    status = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(status.f_bavail * status.f_frsize - left))


def run_until(
    workspace: Workspace,
    owner: Any,
    name: str,
    call: int,
    happens: Callable[[], None],
    *given: str,
) -> Outcome:
    """Run on the disk; something happens to it just before the ``call``-th call of a function."""
    whole, calls = getattr(owner, name), list[None]()

    def then(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            happens()
        return whole(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, then)
        return workspace.run("train", *RUN, *given, "hydra.run.dir=disk/run")


def check_broken_off(outcome: Outcome, why: str) -> None:
    """One sentence that says why, the command to go on, and nothing else that went wrong."""
    assert outcome.code == 1, outcome.err
    said = [line for line in outcome.err.splitlines() if line.startswith("dpft: ")]
    assert len(said) == 2, outcome.err
    assert said[0] == "dpft: to resume: dpft train resume=disk/run"
    assert said[1].startswith("dpft: error: ") and why in said[1]
    assert "Traceback" not in outcome.err


def check_goes_on(workspace: Workspace, step: int, lines: int) -> None:
    """The last checkpoint and the ledger are whole, and lead to what an undisturbed run leaves."""
    folder = workspace.root / "disk/run"
    newest = checkpoints(folder / "private/checkpoints")[-1]
    assert read_checkpoint(newest).step == step
    ledger = read_ledger(folder / "ledger.jsonl")
    assert ledger.lines in (lines, lines - 1) and ledger.steps + ledger.torn_step <= 5
    outcome = workspace.run("train", "resume=disk/run")
    assert outcome.code == 0, outcome.err
    assert files(folder) == files(workspace.root / "whole")
    assert not [path for path in folder.rglob("*") if "partial" in path.name]


FULL = {
    "the first checkpoint": (training_run, "save_checkpoint", 1, 100_000),
    "a checkpoint's model": (training_run, "save_checkpoint", 2, 100_000),
    "a checkpoint's optimizer": (training_run, "save_checkpoint", 2, 400_000),
    "the ledger": (JournaledLedger, "record_step", 4, 0),
    "the model": (train_command, "save_model", 1, 0),
    "the scores": (run_ending, "write_scores", 1, 0),
    "the report": (run_ending, "write_report", 1, 0),
}
"""What does not fit: function before whose call the disk fills, its number, bytes left."""
STANDS = {
    "a checkpoint's model": (0, 3),
    "a checkpoint's optimizer": (0, 3),
    "the scores": (5, 7),
    "the report": (5, 7),
}
"""Step of the last checkpoint, and lines of the ledger then, its plan's among them."""


@pytest.mark.parametrize("what", STANDS)
def test_a_full_disk_ends_the_run_and_loses_nothing(
    workspace: Workspace, disk: Path, what: str
) -> None:
    owner, name, call, left = FULL[what]
    outcome = run_until(workspace, owner, name, call, lambda: fill(disk, left))
    check_broken_off(outcome, "No space left on device")
    again = workspace.run("train", "resume=disk/run")
    check_broken_off(again, "No space left on device")
    remount(disk, "size=64m")
    check_goes_on(workspace, *STANDS[what])


def test_a_disk_that_fills_between_checkpoints_counts_no_step_too_few(
    workspace: Workspace, disk: Path
) -> None:
    """Only ledger, journal and diagnostics grow then, until one of them needs another page."""
    longer = ("train.steps=40", "train.checkpoint_every=30", "eval.enabled=false")
    assert workspace.run("train", *RUN, *longer, "hydra.run.dir=longer").code == 0
    owner, name, call, left = FULL["the ledger"]
    outcome = run_until(workspace, owner, name, call, lambda: fill(disk, left), *longer)
    check_broken_off(outcome, "No space left on device")
    ledger, updates = read_ledger(disk / "run/ledger.jsonl"), disk / "run/private/diagnostics.jsonl"
    updated = max(json.loads(line)["step"] for line in updates.read_text().splitlines()[1:-1])
    assert 3 <= updated <= ledger.counted_steps < 30
    remount(disk, "size=64m")
    assert workspace.run("train", "resume=disk/run").code == 0
    assert files(disk / "run") == files(workspace.root / "longer")


def test_a_disk_too_small_for_the_first_checkpoint_spends_nothing(
    workspace: Workspace, disk: Path
) -> None:
    owner, name, call, left = FULL["the first checkpoint"]
    outcome = run_until(workspace, owner, name, call, lambda: fill(disk, left))
    assert outcome.code == 1 and "No space left on device" in outcome.err
    assert "Traceback" not in outcome.err
    remount(disk, "size=64m")
    outcome = workspace.run("train", *RUN, "hydra.run.dir=disk/run")
    assert outcome.code == 0, outcome.err
    assert files(disk / "run") == files(workspace.root / "whole")


def test_a_folder_that_cannot_be_written_to_is_refused_before_records_are_read(
    workspace: Workspace, disk: Path
) -> None:
    (disk / "run").mkdir()
    remount(disk, "ro")
    data = workspace.root / "data"
    data.rename(workspace.root / "away")
    try:
        for folder in ("disk/run", "disk/new"):
            outcome = workspace.run("train", *RUN, f"hydra.run.dir={folder}")
            assert outcome.code == 1, outcome.err
            assert outcome.err.count("\n") == 1 and "Read-only file system" in outcome.err
    finally:
        (workspace.root / "away").rename(data)


@pytest.mark.parametrize("what", ["a checkpoint's model", "the ledger", "the report"])
def test_a_folder_made_read_only_in_mid_run_loses_nothing(
    workspace: Workspace, disk: Path, what: str
) -> None:
    owner, name, call, _ = FULL[what]

    def forbid() -> None:  # Open files keep a disk from being remounted: a bind mount covers them.
        subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)

    outcome = run_until(workspace, owner, name, call, forbid)
    subprocess.run(["umount", "-l", str(disk)], check=True)
    check_broken_off(outcome, "Read-only file system")
    # The ledger was open already, and goes on to be written to until the next checkpoint.
    check_goes_on(workspace, *({**STANDS, "the ledger": (2, 5)})[what])
