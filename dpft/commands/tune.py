"""``dpft tune``: searches for the best settings, and pays for the search within privacy.eps.

A secret random number of trials, each of a random setting, is drawn and written down before the
first one trains; each is an ordinary private run in private/tuning. Only the best one's files
become public, with the bound of having chosen it.

How many trials there are, which one a file is of, and how the others scored must not be seen by
anyone who sees the best: the bound rests on it (Papernot & Steinke 2022, arXiv 2110.03620). A
trial's score is higher for the better, and private. All that a trial prints goes to a log of its
own in private/tuning: how often it prints would count the trials.
"""

import hmac
import logging
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any

from dpft.commands.exit_codes import FULL_OR_FORBIDDEN, crash_kept, exit_code_of_job
from dpft.commands.guarantee import privacy_of
from dpft.commands.interrupted_run import hint_of_resume, kept_here
from dpft.commands.ledger_account import read_spent
from dpft.commands.new_run import (
    WriteRequest,
    read_begun,
    refuse_used_folder,
    start_anew,
    write_begun,
)
from dpft.commands.run_plan import plan_run, warn_of_delta, with_batch_size
from dpft.commands.splits import TrainingData, divide, known_by, load_training_data
from dpft.commands.task_model import TrainedModel, check_fit
from dpft.commands.train import train_run
from dpft.config.keys import KeyFormatter
from dpft.config.load import load_saved, to_yaml
from dpft.config.schema import TrainConfig
from dpft.config.tune import TuneCommand, with_setting
from dpft.data.training_records import new_key
from dpft.errors import InputError, RunError, StateError
from dpft.evaluation.metrics.base import HIGHER, LOWER, MetricSpec, metric_specs
from dpft.evaluation.scores import Metrics
from dpft.models.architecture import read_architecture
from dpft.models.loading import quiet_transformers
from dpft.parallel.parallel_config import ParallelConfig, check_start
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.selection import (
    UniformStream,
    calibrate_trials,
    draw_count,
    draw_settings,
)
from dpft.privacy.cipher import secret_key
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.reports.epsilon import NOT_PRIVATE_SEED
from dpft.reports.privacy_record import selection_of
from dpft.reports.promises import PrivateRun
from dpft.reports.report import write_report
from dpft.run_folder import (
    CHECKPOINTS,
    CONFIGURATION,
    LEDGER,
    METRICS,
    MODEL,
    PRIVACY,
    PRIVATE,
    REPORT,
    TEXTS_OF_EVALUATIONS,
    TRIAL_LOG,
    TRIAL_SCORE,
    TRIALS,
    TUNE_CONFIGURATION,
    TUNING,
    hold_run,
    is_base_model,
    refuse_links,
    trial_folder,
    what_lacks,
    write_text,
)
from dpft.strict_model import Delta, Positive, StrictModel, Versioned, read_model, write_model
from dpft.training.checkpoint import checkpoints, delete_generator_states


class Trial(StrictModel):
    """One drawn trial of a search; private."""

    setting: Mapping[str, Any]
    """Key to its value."""
    noise_multiplier: Positive
    """Of its training."""


class Search(Versioned):
    """What a search is bound to once it is drawn; the trials are private."""

    calibration: Calibration
    """Of the whole search."""
    delta: Delta
    """At which its epsilon holds."""
    key: str
    """In hexadecimal: by what ``fingerprint`` knows the training records again."""
    fingerprint: str
    """Of the training records."""
    trials: tuple[Trial, ...]
    """All that were drawn."""


class TrialScore(Versioned):
    """How a trial of a search ended; private."""

    score: float | None = None
    """Higher is better; null: it crashed, diverged or has no score, which is the worst."""


def score_metric(command: TuneCommand) -> MetricSpec:
    """Returns what trials are chosen by."""
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
        for entry in read_model(trial / METRICS, Metrics).evaluations
        if entry.stage == "after"
    ]
    mean = math.fsum(values) / len(values) if values else math.nan
    if not math.isfinite(mean):
        return TrialScore(score=None)
    return TrialScore(score={HIGHER: mean, LOWER: -mean}[spec.better or HIGHER])


def write_trial_score(trial: Path, trial_score: TrialScore) -> None:
    """Writes how a trial ended, after which it never runs again."""
    trial.mkdir(mode=0o700, exist_ok=True)
    write_model(trial / TRIAL_SCORE, trial_score, mode=0o600)


def read_trial_score(trial: Path) -> TrialScore | None:
    """Returns how a trial ended; None where it has not."""
    path = trial / TRIAL_SCORE
    return read_model(path, TrialScore) if path.exists() else None


def draw_search(command: TuneCommand) -> Search:
    """Returns a calibrated search, its trials drawn; reads records only to count them.

    Raises:
        InputError: A setting of the search space or the data does not fit, or eps is out of reach.
    """
    config = command.settings()
    score_metric(command)
    check_fit(config)
    data = _training_data(config)
    divide(config, data)
    settings = command.tuning.settings()
    plans = [_uncalibrated(command, setting, data.num_units) for setting in settings]
    noise, calibration = calibrate_trials(
        [plan.event() for plan in plans],
        eps=_privacy(command).eps or math.nan,
        count=command.tune.count,
    )
    drawn = draw_trials(command)
    trials = [Trial(setting=one, noise_multiplier=noise[settings.index(one)]) for one in drawn]
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


def read_search(folder: Path) -> Search | None:
    """Returns what was drawn; None where nothing was yet."""
    path = folder / TRIALS
    return read_model(path, Search) if path.exists() else None


def same_records(command: TuneCommand, search: Search) -> None:
    """Refuses to go on with other training records than the search began with."""
    data = _training_data(command.settings())
    if not hmac.compare_digest(known_by(data, bytes.fromhex(search.key)), search.fingerprint):
        raise InputError(
            "resume must go on with the training records that the search began with, got others;"
            " put them back as they were, or begin a new search."
        )


def _training_data(config: TrainConfig) -> TrainingData:
    """Return the training records as each trial reads them."""
    if not config.task.is_checked_by_model:
        return load_training_data(config)
    model = TrainedModel(architecture=read_architecture(config.model))
    return load_training_data(config, model.encoding(config.task, max_new_tokens=None).check)


def _uncalibrated(command: TuneCommand, setting: Mapping[str, Any], num_units: int) -> PrivacyPlan:
    config = with_setting(command.settings(), setting)
    check_fit(config)
    config = with_batch_size(config, lambda: num_units)
    privacy = _privacy(command).replace(eps=None, noise_multiplier=1.0)
    plan = plan_run(config.replace(privacy=privacy), lambda: num_units).privacy
    assert plan is not None
    return plan


def _privacy(command: TuneCommand) -> DifferentialPrivacy:
    assert command.privacy.guarantee is not None
    return command.privacy.guarantee


STANDARD = (1, 2)
"""Descriptors of standard output and error, to which libraries in C write."""


@contextmanager
def everything_to(path: Path) -> Iterator[None]:
    """Appends what is printed and logged in the block, by C code too, to a file of mode 0600."""
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
        saved = load_saved(path / CONFIGURATION, TrainConfig)
        if is_base_model(saved.model.path or ""):  # The search's folder may have been moved.
            saved = saved.replace(model=saved.model.replace(path=command.model.path))
        train_run(saved, path, resumes=True, with_curve=False)
        return
    train_run(
        with_setting(command.settings(), trial.setting),
        path,
        noise_multiplier=trial.noise_multiplier,
        calibration=search.calibration,
        write_request=write_request,
        with_curve=False,
    )


def publish(command: TuneCommand, search: Search, trial: Path, folder: Path) -> None:
    """Copies the best trial into the run's folder; report and privacy.json, the last, are new.

    Nothing copied names the trial, and every public file has the day and the time of the search's
    beginning: how long it took would tell how many trials there were.
    """
    check_spent(search, folder)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    files = [trial / name for name in (CONFIGURATION, METRICS, LEDGER)]
    files += [path for pattern in TEXTS_OF_EVALUATIONS for path in trial.glob(pattern)]
    files += [path for path in (trial / MODEL).rglob("*") if path.is_file()]
    for source in files:
        target = folder / source.relative_to(trial)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    won = privacy_of(trial)
    assert isinstance(won, PrivateRun)
    begun = read_begun(folder)
    chosen = selection_of(command.tune.count, space=command.tuning.values())
    of_search = won.replace(selection=chosen, starting_models=begun.starting_models, **begun.when)
    write_model(folder / PRIVACY, of_search)
    write_report(folder, of_search)
    date_to_the_beginning(folder)


def date_to_the_beginning(folder: Path) -> None:
    """Gives every public file the time of the search's beginning.

    Another one would tell how long the search took at most, and so how many trials there were.
    """
    began = (folder / TRIALS).stat().st_mtime_ns
    public = [path for path in folder.iterdir() if path.name != PRIVATE]
    below = [path for top in public for path in top.rglob("*")]
    for path in (*below, *public, folder):
        os.utime(path, ns=(began, began))


def check_spent(search: Search, folder: Path) -> None:
    """Refuses a search with a trial that took more noisy steps than were planned."""
    for number in range(len(search.trials)):
        trial = trial_folder(folder, number)
        if not (trial / LEDGER).exists():
            continue
        spent = read_spent(str(trial), trial=True)
        if spent.ledger.steps > spent.plan.steps:
            raise StateError(
                f"a trial in {trial.parent} has taken {spent.ledger.steps} noisy steps of"
                f" {spent.plan.steps} planned, so that the bound of the search does not hold;"
                " begin a new search."
            )


logger = logging.getLogger(__name__)


def resumed_search(folder: str) -> TuneCommand:
    """Returns the configuration that the search in a folder was begun with."""
    path = Path(folder) / TUNE_CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft tune, got {folder!r}, which"
            f" {what_lacks(Path(folder), TUNE_CONFIGURATION)}; give the folder that the search"
            " named."
        )
    saved = load_saved(path, TuneCommand)
    return saved.replace(resume=folder, model=kept_here(saved.model, Path(folder)))


def run(command: TuneCommand, folder: Path, *, write_request: WriteRequest | None = None) -> None:
    """Searches and publishes the best; a crash's text is kept in the folder's private/.

    The folder is a new one, or with ``command.resume`` that of the search which goes on.
    """
    check_start(ParallelConfig())
    quiet_transformers()
    refuse_links(folder)
    with crash_kept(folder):
        if command.resume is None:
            refuse_used_folder(folder)
            search = draw_search(command)
            if command.privacy.noise_seed is not None:
                logger.warning(NOT_PRIVATE_SEED)
            folder.mkdir(parents=True, exist_ok=True)
            with hold_run(folder):
                refuse_used_folder(folder)
                start_anew(folder)
                write_begun(folder)
                if write_request is not None:
                    write_request(folder)
                (folder / TUNING).mkdir(mode=0o700)
                write_text(folder / TUNE_CONFIGURATION, to_yaml(command), mode=0o600)
                write_model(folder / TRIALS, search, mode=0o600)  # synced to disk
                finish(command, search, folder, write_request)
        else:
            go_on_search(command, folder, write_request)


def go_on_search(
    command: TuneCommand, folder: Path, write_request: WriteRequest | None = None
) -> None:
    """Carries out what is left of a search; what was drawn stays."""
    with hold_run(folder):
        if (folder / REPORT).exists() and (folder / PRIVACY).exists():
            date_to_the_beginning(folder)  # It may have been killed before it did.
            logger.info("the search in %s has ended; nothing is left to do", folder)
            return
        search = read_search(folder)
        if search is None:  # It broke off before anything was trained.
            search = draw_search(command)
            write_model(folder / TRIALS, search, mode=0o600)
        same_records(command, search)
        finish(command, search, folder, write_request)


def finish(
    command: TuneCommand, search: Search, folder: Path, write_request: WriteRequest | None = None
) -> None:
    """Runs the trials that have not ended and publishes the best."""
    spec = score_metric(command)
    if (date := read_begun(folder).date) is not None:
        # The day of a trial would reveal how many trials preceded it.
        command = command.replace(task=command.task.begun(date))
    with hint_of_resume(folder):
        count = command.tune.count
        logger.info(
            "tuning: a secret number of trials, %.1f in expectation; one search in 100 has more"
            " than %d", count.expected, count.quantile(0.01),
        )  # fmt: skip
        ended: list[tuple[float, Path]] = []
        for number, trial in enumerate(search.trials):
            path = trial_folder(folder, number)
            trial_score = read_trial_score(path)
            if trial_score is None:
                # Whatever the noise was calibrated to is what each trial trains on.
                same_records(command, search)
                code = run_trial(command, search, trial, path, write_request)
                trial_score = TrialScore(score=None) if code else score_of(path, spec)
                write_trial_score(path, trial_score)
            # it never runs again; also where a search was killed between the two
            delete_generator_states(path / CHECKPOINTS)
            if trial_score.score is not None:
                ended.append((trial_score.score, path))
    if not ended:
        raise RunError(
            f"the search ended without a single score; the logs in {folder / TUNING}, which must"
            " not be released, say why."
        )
    with hint_of_resume(folder):
        # The first of equal ones: trials are drawn alike, so that is any of them.
        publish(command, search, max(ended, key=lambda one: one[0])[1], folder)
