"""How the trials of ``dpft tune`` ended: a score each, higher for the better; all private."""

import math
from pathlib import Path

from dpft.config.tune import TuneCommand
from dpft.errors import InputError
from dpft.evaluation.metrics.base import HIGHER, LOWER, MetricSpec, metric_specs
from dpft.records.form import read_record, write_record
from dpft.records.scores import Metrics, TrialScore
from dpft.run_folder import METRICS, TRIAL_SCORE


def score_metric(command: TuneCommand) -> MetricSpec:
    """Returns what trials are chosen by.

    Raises:
        InputError: The task has no such metric, or neither end of it is better.
    """
    specs = {spec.reported_as: spec for spec in metric_specs(command.task.metrics)}
    name = command.tune.metric or next(iter(specs), "")
    usable = [key for key, spec in specs.items() if spec.better is not None]
    if name not in usable:
        raise InputError(
            f"tune.metric must be one of task.metrics with a better end ({', '.join(usable)}), got"
            f" {name or None!r}; set tune.metric or task.metrics."
        )
    return specs[name]


def score_of(trial: Path, spec: MetricSpec) -> TrialScore:
    """Returns the score of a finished trial, the mean over the parts of its split."""
    values = [
        entry.metrics.get(spec.reported_as, math.nan)
        for entry in read_record(trial / METRICS, Metrics).evaluations
        if entry.stage == "after"
    ]
    mean = math.fsum(values) / len(values) if values else math.nan
    if not math.isfinite(mean):
        return TrialScore(score=None)
    return TrialScore(score={HIGHER: mean, LOWER: -mean}[spec.better or HIGHER])


def write_trial_score(trial: Path, trial_score: TrialScore) -> None:
    """Writes how a trial ended, after which it never runs again."""
    trial.mkdir(mode=0o700, exist_ok=True)
    write_record(trial / TRIAL_SCORE, trial_score, mode=0o600)


def read_trial_score(trial: Path) -> TrialScore | None:
    """Returns how a trial ended; None where it has not.

    Raises:
        InputError: The file is of another schema version.
        StateError: It is damaged.
    """
    path = trial / TRIAL_SCORE
    return read_record(path, TrialScore) if path.exists() else None
