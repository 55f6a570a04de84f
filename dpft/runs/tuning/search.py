"""The trials of ``dpft tune``: drawn once, kept in private, how each ended, and the best of them.

How many there are, which one a thing is of, and how the others scored must not be seen by anyone
who sees the winner: the bound rests on it (Papernot & Steinke 2022, arXiv 2110.03620). A trial's
score is higher for the better, and private. Each is an ordinary private run in private/tuning, and
all that it prints goes to a log of its own there: how often it prints would count the trials.
"""

import hmac
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from dpft.config.keys import KeyFormatter
from dpft.config.load import load_saved
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.config.tune import TuneCommand, with_setting
from dpft.data.training_records import new_key
from dpft.errors import InputError, StateError
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
from dpft.run_folder import (
    CHECKPOINTS,
    CONFIGURATION,
    METRICS,
    TRIAL_LOG,
    TRIAL_SCORE,
    TRIALS,
    is_base_model,
)
from dpft.runs.exit_codes import FULL_OR_FORBIDDEN, exit_code_of_job
from dpft.runs.folder import WriteRequest
from dpft.runs.held_out import divide, known_by
from dpft.runs.run import begin, go_on
from dpft.runs.run_plan import RunPlan, plan_run, warn_of_delta, with_batch_size
from dpft.runs.task_model import check_fit
from dpft.runs.training_data import load_training_data
from dpft.training.checkpoint import checkpoints


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


STANDARD = (1, 2)
"""Descriptors of standard output and error, to which libraries in C write."""


@contextmanager
def everything_to(path: Path) -> Iterator[None]:
    """Appends what is printed and logged inside the block, by C code too, to a file of mode 0600.

    Args:
        path: The file; its folder exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8", buffering=1) as log, ExitStack() as stack:
        stack.enter_context(_descriptors_to(log))
        stack.enter_context(redirect_stdout(log))
        stack.enter_context(redirect_stderr(log))
        stack.enter_context(_logging_to(log))
        yield


@contextmanager
def owner_only() -> Iterator[None]:
    """Lets nobody but the owner read the files and folders that are made inside the block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _descriptors_to(log: IO[str]) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in STANDARD]
    for number in STANDARD:
        os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, kept in zip(STANDARD, before, strict=True):
            os.dup2(kept, number)
            os.close(kept)


@contextmanager
def _logging_to(log: IO[str]) -> Iterator[None]:
    root, handler = logging.getLogger(), logging.StreamHandler(log)
    handler.setFormatter(KeyFormatter("%(levelname)s: %(message)s"))
    before, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = before


def run_trial(
    command: TuneCommand,
    search: Search,
    trial: Trial,
    path: Path,
    write_request: WriteRequest | None = None,
) -> int:
    """Trains and scores one trial, heard by nobody, and returns its exit code.

    A trial without a checkpoint has released nothing and is begun anew.

    Raises:
        OSError: The disk is full or may not be written to: no trial's own failure.
        InputError: It was refused, as for a model that is gone: every setting had been checked.
        StateError: What it left is damaged.
    """
    goes_on = bool(checkpoints(path / CHECKPOINTS))
    if not goes_on:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
    full: list[OSError] = []

    def job() -> None:
        try:
            train_trial(command, search, trial, path, write_request, goes_on=goes_on)
        except OSError as error:
            if error.errno not in FULL_OR_FORBIDDEN:
                raise
            full.append(error)

    with owner_only(), everything_to(path / TRIAL_LOG):
        code = exit_code_of_job(job, withhold=False)
    if full:
        raise OSError(full[0].errno, full[0].strerror, str(path.parent))
    if code == InputError.exit_code:
        raise InputError(
            f"the search must find everything as it began, and a trial in {path.parent} was"
            " refused; its log says why: mend that and go on, or begin a new search."
        )
    if code == StateError.exit_code:
        raise StateError(f"the state of a trial in {path.parent} is damaged; its log says where.")
    return code


def train_trial(
    command: TuneCommand,
    search: Search,
    trial: Trial,
    path: Path,
    write_request: WriteRequest | None = None,
    *,
    goes_on: bool,
) -> None:
    """Trains one trial as ``dpft train`` does, with the noise that the search gave its setting."""
    if goes_on:
        saved = load_saved(path / CONFIGURATION, TrainConfig, polymorphic=POLYMORPHIC)
        if is_base_model(saved.model.path or ""):  # The search's folder may have been moved.
            saved = replace(saved, model=replace(saved.model, path=command.model.path))
        go_on(saved, path, with_curve=False)
        return
    config = with_setting(command.settings(), trial.setting)

    def planner(config: TrainConfig, count_units: Callable[[], int]) -> RunPlan:
        assert config.privacy.guarantee is not None
        noise = trial.noise_multiplier
        privacy = replace(config.privacy.guarantee, eps=None, noise_multiplier=noise)
        plan = plan_run(replace(config, privacy=privacy), count_units)
        assert plan.privacy is not None
        return replace(
            plan, privacy=replace(plan.privacy, calibration=search.calibration, is_trial=True)
        )

    begin(config, path, planner, write_request=write_request, with_curve=False)
