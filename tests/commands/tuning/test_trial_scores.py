"""A trial ends with one score, higher for the better."""

import json
import math
from pathlib import Path

import pytest

from dpft.commands.tune import TrialScore, score_metric, score_of
from dpft.config.tune import TuneCommand
from dpft.errors import StateError
from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.scores import Metrics, ScoreEntry
from dpft.run_folder import TRIAL_SCORE
from dpft.strict_model import read_model, write_model
from tests.config.test_tune import command
from tests.rejections import rejects

BLEU, PERPLEXITY = metric_specs(("bleu", "perplexity"))


def finished(trial: Path, *after: dict[str, float]) -> Path:
    """Return a trial's folder with these scores after training, and better ones before."""
    scores = {"before": ({"bleu": 99.0, "perplexity": 1.0},), "after": after}
    entries = tuple(
        ScoreEntry(
            task="e2e",
            split="test",
            stage=stage,
            examples=3,
            split_is_public=True,
            metrics=metrics,
            not_computed={},
        )
        for stage, found in scores.items()
        for metrics in found
    )
    write_model(trial / "metrics.json", Metrics(evaluations=entries))
    return trial


def test_a_score_is_that_after_training_and_higher_is_better(tmp_path: Path) -> None:
    trial = finished(tmp_path, {"bleu": 20.0, "perplexity": 3.5})
    assert score_of(trial, BLEU) == TrialScore(score=20.0)
    assert score_of(trial, PERPLEXITY) == TrialScore(score=-3.5)


def test_a_split_in_parts_has_the_mean_of_them(tmp_path: Path) -> None:
    assert score_of(finished(tmp_path, {"bleu": 20.0}, {"bleu": 30.0}), BLEU).score == 25.0


@pytest.mark.parametrize("after", [(), ({},), ({"bleu": 2.0}, {})])
def test_a_trial_without_a_finite_score_is_the_worst(
    tmp_path: Path, after: tuple[dict[str, float], ...]
) -> None:
    assert score_of(finished(tmp_path, *after), BLEU) == TrialScore(score=None)


def test_a_damaged_score_is_refused_since_its_trial_must_not_run_again(tmp_path: Path) -> None:
    (tmp_path / TRIAL_SCORE).write_text(json.dumps({"schema_version": 2, "score": math.nan}))
    with pytest.raises(StateError, match="score"):
        read_model(tmp_path / TRIAL_SCORE, TrialScore)


@pytest.fixture(scope="module")
def tune() -> TuneCommand:
    return command("task=e2e", "task.metrics=[mean_length,bleu,perplexity]")


def choosing(tune: TuneCommand, metric: str | None, *metrics: str) -> TuneCommand:
    """Return the search of a task with these metrics, of which one may be named."""
    task = tune.task.replace(metrics=metrics)
    return tune.replace(task=task, tune=tune.tune.replace(metric=metric))


@pytest.mark.slow
def test_trials_are_chosen_by_the_tasks_first_metric_or_the_one_that_is_given(
    tune: TuneCommand,
) -> None:
    assert score_metric(choosing(tune, None, "bleu", "perplexity")) == BLEU
    assert score_metric(choosing(tune, "perplexity", "bleu", "perplexity")) == PERPLEXITY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "metrics"),
    [
        ("mean_length", ("bleu", "mean_length")),
        ("rouge_l", ("bleu",)),
        (None, ("mean_length", "bleu")),
        (None, ()),
    ],
)
def test_a_metric_without_a_better_end_or_that_is_not_computed_is_refused(
    tune: TuneCommand, metric: str | None, metrics: tuple[str, ...]
) -> None:
    with rejects("tune.metric"):
        score_metric(choosing(tune, metric, *metrics))
