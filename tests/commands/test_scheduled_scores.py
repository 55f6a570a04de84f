"""Scores of a public split while a run trains: what they show, when, and what they leave alone."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from docs.tools.reference.forms import schema
from dpft.commands import scheduled_scores
from dpft.commands.scheduled_scores import ScheduledScores
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.evaluate import Evaluation
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.run_folder import PROGRESS
from dpft.training import loop
from dpft.training.listeners import PublicStep
from dpft.training.progress import ProgressRecord
from tests.stories.tiny import SETTING, TRAINING, Workspace, make_workspace

SHORT = ("task.metrics=[perplexity]", "eval.limit=2")
PUBLIC = ("eval.split_is_public=true", *SHORT)
RUN = ("train", *TRAINING, "privacy.noise_multiplier=1", "privacy.noise_seed=1", *PUBLIC)
LONG = ("train.steps=30", "train.checkpoint_every=4")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("scheduled"))


@pytest.fixture(scope="module")
def scored(workspace: Workspace) -> Path:
    """A run of 30 steps that was scored at 10 and 20."""
    done = workspace.run(*RUN, *LONG, "eval.every_steps=7", "hydra.run.dir=scored")
    assert done.code == 0, done.err
    return workspace.root / "scored"


def points(folder: Path) -> list[dict[str, Any]]:
    """The lines of progress.jsonl that have scores."""
    lines = [json.loads(line) for line in (folder / PROGRESS).read_text().splitlines()]
    for line in lines:
        Draft202012Validator(schema("progress_line")).validate(line)
    return [line for line in lines if "evaluations" in line]


def scored_steps(folder: Path) -> list[int]:
    return [point["step"] for point in points(folder)] if (folder / PROGRESS).exists() else []


@pytest.mark.slow
def test_a_series_has_the_scores_and_the_epsilon_of_each_tenth_step(scored: Path) -> None:
    found = points(scored)
    assert [point["step"] for point in found] == [10, 20], "the last step is scored at the end"
    privacy = json.loads((scored / "privacy.json").read_text())
    assert 0 < found[0]["epsilon"] <= found[1]["epsilon"] <= privacy["epsilon"]
    perplexities = [point["evaluations"][0]["metrics"]["perplexity"] for point in found]
    assert len(set(perplexities)) == 2
    report = (scored / "report.md").read_text()
    assert "Scores during training on E2E, test split" in report and "| 20 | " in report
    assert "<svg" in (scored / "report.html").read_text().partition("Scores during training")[2]


@pytest.mark.slow
def test_scores_while_training_leave_every_weight_as_it_was(workspace: Workspace) -> None:
    short = ("train.steps=20", "train.checkpoint_every=4")
    folders = [workspace.root / name for name in ("shortly", "unscored")]
    for folder, more in zip(folders, (("eval.every_steps=7",), ()), strict=True):
        done = workspace.run(*RUN, *short, *more, f"hydra.run.dir={folder.name}")
        assert done.code == 0, done.err
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
    assert [point["step"] for point in points(folders[0])] == [10]
    assert scored_steps(folders[1]) == []


@pytest.mark.slow
def test_a_run_that_goes_on_continues_its_series(
    workspace: Workspace, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loop.check_weights

    def breaks(model: object, step: int) -> None:
        whole(model, step)
        if step == 23:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "check_weights", breaks)
    words = (*RUN, *LONG, "eval.every_steps=10", "hydra.run.dir=broken")
    assert workspace.run(*words).code == 130
    monkeypatch.setattr(loop, "check_weights", whole)
    folder = workspace.root / "broken"
    assert [point["step"] for point in points(folder)] == [10, 20]
    done = workspace.run("train", "resume=broken")
    assert done.code == 0, done.err
    kept = ("step", "epsilon", "evaluations")
    first, second = (
        [[point[key] for key in kept] for point in points(f)] for f in (folder, scored)
    )
    assert first == second
    steps = [json.loads(line)["step"] for line in (folder / PROGRESS).read_text().splitlines()]
    assert steps == [10, 20, 30]


@pytest.mark.slow
def test_private_splits_are_refused_before_any_record_is_read(workspace: Workspace) -> None:
    words = ("train", *TRAINING, "task.data_dir=nowhere", "privacy.eps=8", "eval.every_epochs=1")
    for split in (("eval.split=test",), ("eval.split=train", "eval.split_is_public=true")):
        sentence = workspace.refusal(*words, *split)
        assert sentence.startswith("eval.every_epochs") and split[0] in sentence


@pytest.mark.slow
def test_without_privacy_there_is_no_epsilon(workspace: Workspace) -> None:
    words = ("train", *SETTING, "train.expected_batch_size=8", "privacy=none", *PUBLIC[:3])
    clip = ("privacy.max_grad_norm=0.1", "train.steps=20", "eval.every_steps=10")
    done = workspace.run(*words, *clip, "hydra.run.dir=open")
    assert done.code == 0, done.err
    (point,) = points(workspace.root / "open")
    assert point["step"] == 10 and "epsilon" not in point
    assert "| 10 | – |" in (workspace.root / "open/report.md").read_text()


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, list[int]]]:
    """Take steps with a model that is worth the number of times it was scored.

    Returns at which of them scores appeared, and the steps that had any then.
    """
    scores = iter(range(1, 100))

    def evaluate(*_: object, **__: object) -> list[Evaluation]:
        one = Evaluation(
            task="e2e", split="test", examples=2, stage="after",
            metrics={"bleu": float(next(scores))}, not_computed={}, predictions=(),
        )  # fmt: skip
        return [one]

    monkeypatch.setattr(scheduled_scores, "score_stage", evaluate)

    def taken(start: int, last: int, end: int, **changes: object) -> dict[int, list[int]]:
        config = SimpleNamespace(
            eval=EvalConfig(**{"every_steps": 10, **changes}),
            method=SimpleNamespace(extra_positions=0),
            train=SimpleNamespace(batch_size=lambda size: 8),
        )
        progress, seen = ProgressRecord(tmp_path), {}
        scored: Any = {"test": [1]}
        scheduled = ScheduledScores.of_run(config, 100, None, None, scored, progress)
        assert scheduled is not None
        spent = SpentEpsilon(epsilon=1.0, accountant="rdp")
        progress.begin(start)
        scheduled.begin(start, last, spent)
        before = scored_steps(tmp_path)
        for step in range(start + 1, end + 1):
            scheduled.after_step(step, spent)
            progress.after_step(
                PublicStep(step=step, last_step=last, learning_rate=0.1, epsilon=spent)
            )
            now = scored_steps(tmp_path)
            if now != before:
                seen[step], before = now, now
        return seen

    return taken


Take = Callable[..., dict[int, list[int]]]


@pytest.mark.slow
def test_trust_rule_7_points_appear_at_multiples_of_ten_and_a_window_after_the_start(
    take: Take,
) -> None:
    assert take(0, 45, 45, every_steps=3) == {10: [10], 20: [10, 20], 30: [10, 20, 30]}
    # Steps 26 to 30 are too few to show: what they gave waits for the next boundary.
    assert take(25, 65, 41) == {40: [10, 20, 30, 40]}


@pytest.mark.slow
def test_scores_of_steps_that_are_taken_again_give_way(take: Take, tmp_path: Path) -> None:
    take(0, 60, 40)
    old = {point["step"]: point["evaluations"] for point in points(tmp_path)}
    take(20, 60, 40)
    new = {point["step"]: point["evaluations"] for point in points(tmp_path)}
    assert old[20] == new[20] and old[30] != new[30] and old.keys() == new.keys()


def test_a_score_that_its_checkpoint_survived_is_made_up_for(take: Take, tmp_path: Path) -> None:
    assert take(20, 60, 30) == {30: [20, 30]}


def test_epochs_are_steps_of_the_public_number_of_examples(take: Take) -> None:
    """100 examples by 8 are 12.5 steps: rounded, and then up to whole tens."""
    assert take(0, 60, 60, every_steps=None, every_epochs=1) == {20: [20], 40: [20, 40]}


def test_a_schedule_that_asks_for_nothing_says_so(
    take: Take, caplog: pytest.LogCaptureFixture
) -> None:
    assert take(0, 45, 45, every_steps=30) == {}
    assert "eval.every_steps=30" in caplog.text
