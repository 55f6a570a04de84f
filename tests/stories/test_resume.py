"""``dpft train resume=RUN``: runs that broke off go on, and nothing they are bound to changes."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpft.training import loop, training_run
from tests.stories.tiny import (
    EVALUATION,
    TRAINING,
    Outcome,
    Workspace,
    make_workspace,
    unnamed,
    write_rows,
)

RUN = (
    *TRAINING, "train.steps=5", "train.checkpoint_every=2", "train.num_threads=1",
    "privacy.noise_multiplier=1", "privacy.noise_seed=3", *EVALUATION,
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run ``whole``."""
    made = make_workspace(tmp_path_factory.mktemp("resume"))
    made.finished(*RUN, "hydra.run.dir=whole")
    return made


def broken(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: BaseException,
    *given: str,
    owner: Any = loop,
    function: str = "check_weights",
    call: int = 4,
) -> Outcome:
    """Start a run that breaks off in the ``call``-th call of a function."""
    calls: list[None] = []
    whole: Callable[..., Any] = getattr(owner, function)

    def breaks(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            raise error
        return whole(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, breaks)
        return workspace.run("train", *RUN, *given, f"hydra.run.dir={name}")


def files(folder: Path) -> dict[str, bytes]:
    """The public files that do not name the folder, without what names the run."""
    return {
        str(path.relative_to(folder)): unnamed(path)
        for path in folder.rglob("*")
        if path.is_file() and "private" not in path.parts and ".hydra" not in path.parts
    }


@pytest.mark.slow
def test_trust_rule_9_an_interrupted_run_goes_on_to_the_same_files(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = broken(workspace, monkeypatch, "cut", KeyboardInterrupt())
    assert outcome.code == 130
    assert "dpft: to resume: dpft train resume=cut" in outcome.err
    resumed = workspace.run("train", "resume=cut", "privacy.noise_multiplier=1")
    assert resumed.code == 2, "what the run is bound to cannot be given again"
    resumed = workspace.run("train", "resume=cut")
    assert resumed.code == 0, resumed.err
    whole, cut = (files(workspace.root / name) for name in ("whole", "cut"))
    assert whole == cut
    again = workspace.run("train", "resume=cut")
    assert (again.code, again.new) == (0, frozenset())
    assert "is already complete" in again.err


@pytest.mark.slow
def test_another_micro_batch_size_draws_new_noise_and_the_report_counts_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(workspace, monkeypatch, "other", KeyboardInterrupt())
    resumed = workspace.run("train", "resume=other", "train.micro_batch_size=2")
    assert resumed.code == 0, resumed.err
    assert "The ledger already contains 4 steps" in resumed.err
    record = json.loads((workspace.root / "other" / "privacy.json").read_text())
    assert (record["plan"]["steps"], record["steps_taken"]) == (5, 7)
    whole = json.loads((workspace.root / "whole" / "privacy.json").read_text())
    assert record["epsilon"] > whole["epsilon"]
    assert any("were repeated with new noise" in warning for warning in record["warnings"])


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_sentence_and_loses_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "state.json")
    outcome = broken(
        workspace, monkeypatch, "full", full, owner=training_run, function="save_checkpoint", call=3
    )
    assert outcome.code == 1
    assert "error: state.json could not be written: No space left on device." in outcome.err
    assert "Traceback" not in outcome.err
    assert workspace.run("train", "resume=full").code == 0
    assert files(workspace.root / "full") == files(workspace.root / "whole")


@pytest.mark.slow
def test_trust_rule_9_other_records_or_settings_are_refused(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(workspace, monkeypatch, "bound", KeyboardInterrupt(), "eval.enabled=false")
    sentence = workspace.refusal("train", "resume=bound", "method=lora")
    assert "method cannot change" in sentence
    assert workspace.refusal("train", "method=lora", "resume=bound") == sentence
    data = workspace.root / "data" / "train.jsonl"
    whole = data.read_text()
    lines = whole.splitlines(keepends=True)
    data.write_text("".join([lines[1], lines[0], *lines[2:]]))
    outcome = workspace.run("train", "resume=bound")
    assert outcome.code == 2
    assert "the training records that the run began with" in outcome.err
    data.write_text(whole)
    config = workspace.root / "bound" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("max_grad_norm: 0.1", "max_grad_norm: 0.2"))
    outcome = workspace.run("train", "resume=bound")
    assert outcome.code == 2
    assert "the phases of its plan" in outcome.err
    config.write_text(text)
    assert workspace.run("train", "resume=bound").code == 0


@pytest.mark.slow
def test_a_run_that_took_no_step_is_refused(workspace: Workspace) -> None:
    (workspace.root / "early").mkdir()
    text = (workspace.root / "whole" / "config.yaml").read_text()
    (workspace.root / "early" / "config.yaml").write_text(text)
    outcome = workspace.run("train", "resume=early")
    assert outcome.code == 2
    assert "'early'" in outcome.err


@pytest.mark.slow
def test_held_out_units_and_their_keys_stay_the_same(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(f"name[Place {n}]", f"Place {n} is a pub.") for n in range(40)]
    write_rows(workspace.root / "one.jsonl", rows)
    given = (
        "task=custom", "task.data_dir=one.jsonl", 'task.prompt="{meaning_representation} "',
        'task.target="{human_reference}"', "task.max_length=64", "eval.held_out=0.3",
        "privacy.unit=human_reference", "privacy.records_per_unit=2",
    )  # fmt: skip
    start = [value for value in given if not value.startswith("task=")]
    calls = broken(workspace, monkeypatch, "held", KeyboardInterrupt(), "task=custom", *start)
    assert calls.code == 130, calls.err
    key = (workspace.root / "held/private/held_out.key").read_bytes()
    resumed = workspace.run("train", "resume=held")
    assert resumed.code == 0, resumed.err
    assert (workspace.root / "held/private/held_out.key").read_bytes() == key


@pytest.mark.slow
def test_accounting_from_the_ledger_says_what_the_run_said_and_what_a_broken_one_spent(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(workspace, monkeypatch, "spent", KeyboardInterrupt())
    outcome = workspace.run("account", "runs=[whole,spent]", "output=json")
    assert (outcome.code, outcome.err) == (0, "")
    whole, spent = json.loads(outcome.out)["runs"]
    said = json.loads((workspace.root / "whole" / "privacy.json").read_text())
    for key in ("epsilon", "accountant", "delta", "plan", "steps_taken"):
        assert whole[key] == said[key]
    assert whole["ledger"]["head"] == said["ledger"]["head"]
    # broken off in its fourth step, whose noise was on disk before the weights moved
    assert (spent["steps_taken"], spent["ledger"]["closed"]) == (4, False)
    assert spent["epsilon"] < whole["epsilon"]
    assert spent["plan"] == whole["plan"] and spent["plan"]["steps"] == 5
