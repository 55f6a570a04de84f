"""Resuming: a run repeats its steps bit for bit, or pays for every repeated step."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from tests.guarantees.watched_runs import (
    SEEDED,
    STEPS,
    edit,
    interrupted,
    ledger_lines,
    ledger_steps,
)
from tests.stories.tiny import Workspace, make_workspace

pytestmark = pytest.mark.slow

REPEATED = 2
"""Steps between the crashed run's last checkpoint, of step 2, and its last line, of step 4."""
BAD_INPUT, CORRUPTED = 2, 3
"""Exit codes for a command that does not fit the run, and for damaged files."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with ``whole``, a finished run."""
    workspace = make_workspace(tmp_path_factory.mktemp("template"))
    workspace.finished(*SEEDED[1:], "hydra.run.dir=whole")
    return workspace


@pytest.fixture
def workspace(template: Workspace, tmp_path: Path) -> Workspace:
    """A workspace with ``whole``, and with ``crashed``, the same run without its last steps.

    Four steps are in its ledger, and its last checkpoint is that of step 2.
    """
    for name in ("model", "data", "whole"):
        shutil.copytree(template.root / name, tmp_path / name)
    workspace = Workspace(tmp_path)
    outcome = interrupted(workspace, "crashed")
    assert outcome.code == 130, outcome.err
    assert ledger_steps(tmp_path / "crashed") == [1, 2, 3, 4]
    return workspace


def released(workspace: Workspace, folder: str) -> bytes:
    return (workspace.root / folder / "model" / "model.safetensors").read_bytes()


def assert_resumed_bit_for_bit(workspace: Workspace) -> None:
    """Check that the resumed run equals the one that was never interrupted."""
    steps = [line for line in ledger_lines(workspace.root / "crashed") if "step" in line]
    whole = [line for line in ledger_lines(workspace.root / "whole") if "step" in line]
    without_hashes = [[{**line, "previous": ""} for line in lines] for lines in (steps, whole)]
    assert without_hashes[0] == without_hashes[1]
    assert released(workspace, "crashed") == released(workspace, "whole")


def assert_repeated_steps_are_counted(workspace: Workspace, folder: str) -> None:
    """Check that the repeated steps have new lines in the ledger, and are in epsilon."""
    assert ledger_steps(workspace.root / folder) == list(range(1, STEPS + REPEATED + 1))
    outcomes = [workspace.run("account", f"run={run}", "output=json") for run in ("whole", folder)]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[1].err
    whole, resumed = (json.loads(outcome.out) for outcome in outcomes)
    assert resumed["steps_taken"] == STEPS + REPEATED
    assert resumed["epsilon"] > whole["epsilon"]


def test_a_resumed_run_repeats_its_steps_bit_for_bit(workspace: Workspace) -> None:
    outcome = workspace.run("train", "resume=crashed")
    assert outcome.code == 0, outcome.err
    assert_resumed_bit_for_bit(workspace)


def test_the_step_of_a_crash_before_its_ledger_line_gets_its_line(template: Workspace) -> None:
    """The step's fingerprint is in private/steps.jsonl, and its line is not in the ledger yet."""
    fingerprints = template.root / "early" / "private" / "steps.jsonl"
    sync = os.fsync

    def crash(descriptor: int) -> None:
        sync(descriptor)
        is_fingerprint = fingerprints.exists() and os.path.samestat(
            os.fstat(descriptor), fingerprints.stat()
        )
        if is_fingerprint and len(fingerprints.read_text().splitlines()) == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        outcome = template.run(*SEEDED, "hydra.run.dir=early")
    assert outcome.code == 130, outcome.err
    assert ledger_steps(template.root / "early") == [1, 2]
    outcome = template.run("train", "resume=early")
    assert outcome.code == 0, outcome.err
    assert ledger_steps(template.root / "early") == list(range(1, STEPS + 1))
    assert released(template, "early") == released(template, "whole")


def test_a_torn_last_line_is_replaced(workspace: Workspace) -> None:
    """A power cut can leave the beginning of a line."""
    ledger = workspace.root / "crashed" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-20])
    outcome = workspace.run("train", "resume=crashed")
    assert outcome.code == 0, outcome.err
    assert_resumed_bit_for_bit(workspace)
    assert workspace.run("account", "run=crashed").code == 0


def test_other_records_are_rejected(workspace: Workspace) -> None:
    """The same noise on other records would reveal the difference of the sums."""
    data = workspace.root / "data" / "train.jsonl"
    first, second, *rest = data.read_text().splitlines(keepends=True)
    data.write_text("".join([second, first, *rest]))
    outcome = workspace.run("train", "resume=crashed")
    assert outcome.code == BAD_INPUT, outcome.err
    assert ledger_steps(workspace.root / "crashed") == [1, 2, 3, 4]


def test_another_base_model_is_rejected(workspace: Workspace) -> None:
    """The checkpoint has the frozen weights, but the adapter is used with those of the base."""
    words = (*SEEDED, "method=bitfit")
    assert interrupted(workspace, "adapter", *words).code == 130
    path = workspace.root / "model" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("attn.c_attn.weight"))
    weights[name][0, 0] += 1
    save_file(weights, path, metadata={"format": "pt"})
    outcome = workspace.run("train", "resume=adapter")
    assert outcome.code == CORRUPTED, outcome.err
    assert ledger_steps(workspace.root / "adapter") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("before", "after"),
    [("expected_batch_size: 8", "expected_batch_size: 4"), ("steps: 5", "steps: 6")],
)
def test_an_edited_config_does_not_change_the_plan(
    workspace: Workspace, before: str, after: str
) -> None:
    edit(workspace.root / "crashed" / "config.yaml", before, after)
    if workspace.run("train", "resume=crashed").code == 0:
        assert_resumed_bit_for_bit(workspace)
    else:
        assert ledger_steps(workspace.root / "crashed") == [1, 2, 3, 4]


def test_a_step_that_does_not_come_out_as_before_is_counted_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise on another sum would reveal the difference of the sums."""
    forward = GPT2LMHeadModel.forward

    def other_forward(self: GPT2LMHeadModel, *args: object, **kwargs: object) -> object:
        outputs = forward(self, *args, **kwargs)
        outputs.logits = outputs.logits * 1.0001
        return outputs

    monkeypatch.setattr(GPT2LMHeadModel, "forward", other_forward)
    outcome = workspace.run("train", "resume=crashed")
    assert outcome.code == 0, outcome.err
    assert_repeated_steps_are_counted(workspace, "crashed")


def test_a_copied_run_draws_new_noise(workspace: Workspace) -> None:
    """The run and its copy would add the same noise to different sums."""
    shutil.copytree(workspace.root / "crashed", workspace.root / "copy")
    outcome = workspace.run("train", "resume=copy")
    assert outcome.code == 0, outcome.err
    assert_repeated_steps_are_counted(workspace, "copy")
    assert released(workspace, "copy") != released(workspace, "whole")


def test_a_restored_run_draws_new_noise(workspace: Workspace) -> None:
    """The run was resumed after the backup was made, so its keys have been used."""
    crashed, backup = workspace.root / "crashed", workspace.root / "backup"
    shutil.copytree(crashed, backup)
    shutil.rmtree(crashed)
    shutil.copytree(backup, crashed)
    outcome = workspace.run("train", "resume=crashed")
    assert outcome.code == 0, outcome.err
    assert_repeated_steps_are_counted(workspace, "crashed")


def test_a_damaged_checkpoint_is_rejected(workspace: Workspace) -> None:
    for path in (workspace.root / "crashed" / "private").rglob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    outcome = workspace.run("train", "resume=crashed")
    assert outcome.code == CORRUPTED, outcome.err
    assert ledger_steps(workspace.root / "crashed") == [1, 2, 3, 4]


def test_resume_auto_rejects_other_settings_than_the_run_began_with(workspace: Workspace) -> None:
    ledger = workspace.root / "crashed" / "ledger.jsonl"
    before = ledger.read_bytes()
    words = ("train.learning_rate=0.5", "resume=auto", "hydra.run.dir=crashed")
    outcome = workspace.run(*SEEDED, *words)
    assert (outcome.code, ledger.read_bytes()) == (2, before)
    assert "dpft train resume=" in outcome.err


def test_the_same_command_begins_no_second_run(workspace: Workspace) -> None:
    """It resumes the run, or it is rejected. A second run on the same records costs epsilon."""
    ledger = workspace.root / "crashed" / "ledger.jsonl"
    before = ledger.read_bytes()
    outcome = workspace.run(*SEEDED, "hydra.run.dir=crashed")
    if outcome.code == 0:
        assert ledger.read_bytes().startswith(before)
        assert_resumed_bit_for_bit(workspace)
    else:
        assert ledger.read_bytes() == before
