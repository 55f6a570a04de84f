import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dpft.commands.tracking import (
    Tracking,
    results,
)
from dpft.evaluation.scores import SplitScores
from dpft.training.progress_record import ProgressLine
from tests.reports.plain import privacy_of
from tests.reports.test_privacy_record import record as private
from tests.reports.test_report import entry
from tests.slowness import slow
from tests.stories.tiny import EVALUATION, MARKER, TRAINING, Workspace, make_workspace
from tests.training.trackers.reading import read_events, wandb_records

RUN = (
    *TRAINING, "train.steps=20", "train.num_threads=1", "privacy.noise_multiplier=1",
    "privacy.show_diagnostics=true",
)  # fmt: skip
CURVES = {"train/learning_rate", "train/steps_per_second", "privacy/epsilon"}
RESULTS = {"privacy/epsilon_reported", "privacy/steps_taken"}
SCORES = {f"eval/{when}/test/bleu" for when in ("before", "after")}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("tracking"))


def test_trust_rule_8_only_scores_of_public_splits_are_told() -> None:
    entries = [entry("after", 20.0), entry("after", 20.0, split="mine").marked(False)]
    assert results(privacy_of({**private(), "epsilon": 2.5, "steps_taken": 20}), entries) == {
        "privacy/epsilon_reported": 2.5,
        "privacy/steps_taken": 20.0,
        "eval/after/test/bleu": 20.0,
    }


class Kept:
    """A tracker that keeps what it is told, and may fail from a call on."""

    def __init__(self, fails_after: int = 10**6) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.left = fails_after

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the network\nis down")
        self.points.append((step, dict(values)))

    conclude = write

    def close(self, *, failed: bool) -> None:
        pass


def told(kept: Kept, *steps: int, every: int = 10, **changes: Any) -> Tracking:
    """A tracking that is told lines at some steps of a run of 70, ten steps in two seconds each."""
    found = Tracking(kept, name="kept", every=every)
    for step in steps:
        known = {"since": step - 10, "seconds": 2.0, "learning_rate": 0.1, "epsilon": 1.0}
        found.show(ProgressLine(step=step, **(known | changes)), 70)
    return found


def test_a_tracker_gets_a_point_every_so_many_steps_with_the_rate_since_the_last_one() -> None:
    kept = Kept()
    told(kept, 10, 20, 30, 40, 50, 60, 70, every=25)
    assert [step for step, _ in kept.points] == [30, 60, 70]
    assert all(set(values) == CURVES for _, values in kept.points)
    assert {values["train/steps_per_second"] for _, values in kept.points} == {5.0}


def test_scores_are_points_of_their_own_and_what_is_not_known_is_left_out() -> None:
    kept = Kept()
    scores = (SplitScores(task="e2e", split="test", examples=2, metrics={"bleu": 3.5}),)
    told(kept, 20, every=50, evaluations=scores, since=None, seconds=None, epsilon=None)
    assert kept.points == [(20, {"train/learning_rate": 0.1, "eval/test/bleu": 3.5})]


def test_a_tracker_that_fails_is_warned_of_once_and_loses_no_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept(fails_after=1)
    listener = told(kept, 10, 20, 30)
    listener.conclude(40, {"privacy/epsilon_reported": 3.0})
    listener.close(failed=False)
    assert [step for step, _ in kept.points] == [10]
    (message,) = caplog.messages
    assert "ConnectionError: the network is down" in message


@pytest.mark.slow
def test_trust_rule_7_tensorboard_is_told_public_quantities_only(workspace: Workspace) -> None:
    pytest.importorskip("tensorboard")
    seeds = ("privacy.noise_seed=31415", "train.seed=27182", "eval.enabled=false")
    outcome = workspace.run("train", *RUN, *seeds, "tracking=tensorboard", "hydra.run.dir=tb")
    assert outcome.code == 0, outcome.err
    folder = workspace.root / "tb" / "tracking"
    events = read_events(folder / "tensorboard")
    assert events.keys() == CURVES | RESULTS | {"config/text_summary"}
    assert {tag: [step for step, _, _ in events[tag]] for tag in CURVES} == dict.fromkeys(
        CURVES, [10, 20]
    )
    ((_, _, config),) = events["config/text_summary"]
    assert b"reproducible: not private" in config and b"31415" not in config
    assert b"seed: 27182" in config, "public configuration that the user wrote"
    assert str(workspace.root).encode() not in config
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert MARKER.encode() not in content


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", *slow(("wandb",))])
def test_a_missing_package_is_refused_before_anything_is_read_or_written(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    sentence = workspace.refusal("train", *RUN, f"tracking={name}", "task.data_dir=nowhere")
    assert f"tracking={name}" in sentence and "dpft[tracking]" in sentence


@pytest.mark.slow
@pytest.mark.parametrize("public", [False, True])
def test_scores_reach_a_tracker_where_the_split_is_public(
    workspace: Workspace, public: bool
) -> None:
    pytest.importorskip("tensorboard")
    run = f"scored-{public}"
    given = (*EVALUATION, f"eval.split_is_public={str(public).lower()}", f"hydra.run.dir={run}")
    outcome = workspace.run("train", *RUN, *given, "tracking=tensorboard", "task.metrics=[bleu]")
    assert outcome.code == 0, outcome.err
    events = read_events(workspace.root / run / "tracking" / "tensorboard")
    expected = CURVES | RESULTS | {"config/text_summary"}
    assert events.keys() == (expected | SCORES if public else expected)


@pytest.mark.slow
def test_trust_rule_7_wandb_is_told_public_quantities_only(workspace: Workspace) -> None:
    pytest.importorskip("wandb")
    given = ("eval.enabled=false", "tracking=wandb", "tracking.mode=offline", "hydra.run.dir=wb")
    outcome = workspace.run("train", *RUN, *given)
    assert outcome.code == 0, outcome.err
    files = [path for path in (workspace.root / "wb" / "tracking").rglob("*") if path.is_file()]
    (path,) = (path for path in files if path.suffix == ".wandb")
    assert files == [path]
    records = wandb_records(path)
    rows = [record.history for record in records if record.HasField("history")]
    keys = {(item.key or "/".join(item.nested_key)) for row in rows for item in row.item}
    assert keys == CURVES | {"_step", "_timestamp", "_runtime"}
    assert [row.step.num for row in rows] == [10, 20]
    summary = {
        item.key or "/".join(item.nested_key)
        for record in records
        if record.HasField("summary")
        for item in record.summary.update
    }
    assert summary - keys == RESULTS | {"_wandb/runtime"}
    content = path.read_bytes()
    for told in (MARKER, str(workspace.root), str(Path.home()), "noise_seed", "mean training"):
        assert told.encode() not in content
