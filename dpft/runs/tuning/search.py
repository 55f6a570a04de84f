"""The trials of ``dpft tune``: drawn once, kept in private, how each ended, and the best of them.

How many there are, which one a thing is of, and how the others scored must not be seen by anyone
who sees the winner: the bound rests on it (Papernot & Steinke 2022, arXiv 2110.03620). A trial's
score is higher for the better, and private.
"""

import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpft.config.tune import TuneCommand, with_setting
from dpft.data.held_out import new_key
from dpft.errors import InputError
from dpft.evaluation.metrics.base import HIGHER, LOWER, MetricSpec, metric_specs
from dpft.privacy.accounting.selection import calibrate_trials
from dpft.privacy.keys import secret_key
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.trials import draw_count, draw_settings
from dpft.privacy.uniform import UniformStream
from dpft.records.form import read_record, write_record
from dpft.records.scores import Metrics, TrialScore
from dpft.records.sweeps import Search, Trial
from dpft.run_folder import METRICS, TRIAL_SCORE, TRIALS
from dpft.runs.held_out import divide, known_by
from dpft.runs.run_plan import plan_run, warn_of_delta, with_batch_size
from dpft.runs.task_model import check_fit
from dpft.runs.training_data import load_training_data


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


def draw_search(command: TuneCommand) -> Search:
    """Returns a calibrated search, its trials drawn; reads records only to count them.

    Raises:
        InputError: A setting of the search space or the data does not fit, or eps is out of reach.
    """
    config = command.settings()
    score_metric(command)
    check_fit(config)
    data = load_training_data(config)
    divide(config, data)
    settings = command.tuning.settings()
    plans = [_uncalibrated(command, setting, data.num_units) for setting in settings]
    noise, calibration = calibrate_trials(
        [plan.event() for plan in plans],
        eps=_privacy(command).eps or math.nan,
        count=command.tune.count,
    )
    by_setting = {_key(setting): value for setting, value in zip(settings, noise, strict=True)}
    drawn = draw_trials(command)
    trials = [Trial(setting=one, noise_multiplier=by_setting[_key(one)]) for one in drawn]
    warn_of_delta(plans[0])
    key = new_key()
    return Search(
        calibration=calibration,
        delta=plans[0].delta,
        key=key.hex(),
        fingerprint=known_by(data, key),
        trials=tuple(trials),
    )


def draw_trials(command: TuneCommand) -> list[dict[str, Any]]:
    """Returns the settings of a random number of trials; nobody else may know either."""
    stream = UniformStream(secret_key("tuning", _privacy(command).noise_seed))
    number = draw_count(command.tune.count, stream)
    return draw_settings(command.tuning.values(), number, stream)


def write_search(folder: Path, search: Search) -> None:
    """Writes what was drawn, synced to disk, for the owner alone."""
    write_record(folder / TRIALS, search, mode=0o600)


def read_search(folder: Path) -> Search | None:
    """Returns what ``write_search`` wrote; None where nothing was drawn yet.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    path = folder / TRIALS
    return read_record(path, Search) if path.exists() else None


def same_records(command: TuneCommand, search: Search) -> None:
    """Refuses to go on with other training records than the search began with.

    Raises:
        InputError: They are others.
    """
    data = load_training_data(command.settings())
    if not hmac.compare_digest(known_by(data, bytes.fromhex(search.key)), search.fingerprint):
        raise InputError(
            "resume must go on with the training records that the search began with, got others;"
            " put them back as they were, or begin a new search."
        )


def _uncalibrated(command: TuneCommand, setting: Mapping[str, Any], num_units: int) -> PrivacyPlan:
    config = with_setting(command.settings(), setting)
    check_fit(config)
    config = with_batch_size(config, lambda: num_units)
    privacy = replace(_privacy(command), eps=None, noise_multiplier=1.0)
    plan = plan_run(replace(config, privacy=privacy), lambda: num_units).privacy
    assert plan is not None
    return plan


def _privacy(command: TuneCommand) -> DifferentialPrivacy:
    assert command.privacy.guarantee is not None
    return command.privacy.guarantee


def _key(setting: Mapping[str, Any]) -> str:
    return json.dumps(setting, sort_keys=True)
