"""Hyperparameter search within one epsilon: train trials and publish the best (``dpft tune``).

A secret random number of trials is drawn and written to disk before the first trial trains. Each
trial has a random setting and is an ordinary private run in private/tuning. The noise is calibrated
so that the whole search stays within privacy.eps. Only the best trial's files become public, with
the bound for having chosen it. A resumed search executes the same code, with the trials that are
already on disk.

A reader of the best trial must not learn how many trials there were, which trial it is, or how the
others scored. The bound holds only under this condition (Papernot & Steinke 2022, arXiv
2110.03620). The score of a trial is private; a higher score is better. All output of a trial goes
to its own log in private/tuning, because the number of outputs would reveal the number of trials.
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
from typing import Any

from dpft.commands.exit_codes import FULL_OR_FORBIDDEN, ExitStatus, crash_kept, errors_reported
from dpft.commands.guarantee import privacy_of
from dpft.commands.interrupted_run import hint_of_resume, kept_here
from dpft.commands.ledger_account import read_spent
from dpft.commands.new_run import (
    hold_new_folder,
    read_begun,
    refuse_used_folder,
    start_anew,
    write_begun,
)
from dpft.commands.run_plan import plan_run, warn_of_delta, with_batch_size
from dpft.commands.splits import (
    TrainingData,
    divide,
    known_by,
    load_training_data,
)
from dpft.commands.task_model import TrainedModel, check_fit
from dpft.commands.train import train_run
from dpft.config.hydra_compose import Composed
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
from dpft.reports.epsilon import NOT_PRIVATE_SEED
from dpft.reports.privacy_json import PrivateRun
from dpft.reports.privacy_record import (
    selection_of,
)
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

logger = logging.getLogger(__name__)


class Trial(StrictModel):
    """One drawn trial of a search; private."""

    setting: Mapping[str, Any]
    """The drawn value of each key."""
    noise_multiplier: Positive
    """Noise multiplier of the trial's training."""


class Search(Versioned):
    """The fixed state of a search after its trials are drawn; the trials are private."""

    calibration: Calibration
    """Calibration of the whole search."""
    delta: Delta
    """The delta at which epsilon of the search holds."""
    key: str
    """Key of ``fingerprint``, in hexadecimal."""
    fingerprint: str
    """Keyed hash of the training records, so that the search can recognize them."""
    trials: tuple[Trial, ...]
    """All trials that were drawn."""


class TrialScore(Versioned):
    """The outcome of a trial of a search; private."""

    score: float | None = None
    """Score of the trial; higher is better, and null means that the trial crashed, diverged or has
    no score, which is the worst outcome."""


def run(command: TuneCommand, folder: Path, *, composed: Composed | None = None) -> None:
    """Search and publish the best trial; keep a crash's traceback in the folder's ``private/``.

    Args:
        command: The search's configuration, and whether it is resumed.
        folder: A new folder, or with ``command.resume`` the folder of the interrupted search.
        composed: The composition by Hydra, which is written into ``.hydra/`` of a new folder and of
            each trial's folder.

    Raises:
        InputError: A setting or a record is invalid, or has changed since the search began.
        RunError: No trial has a score.
        StateError: A file of the interrupted search is damaged.
    """
    check_start(ParallelConfig())
    quiet_transformers()
    refuse_links(folder)
    with crash_kept(folder), ExitStack() as stack:
        # 1. Check the folder. The folder of an interrupted search may contain the drawn trials.
        search = None
        if command.resume is None:
            refuse_used_folder(folder)
        else:
            stack.enter_context(hold_run(folder))
            if (folder / REPORT).exists() and (folder / PRIVACY).exists():
                backdate_public_files(folder)  # The search may have been killed before it did this.
                logger.info("the search in %s is already complete", folder)
                return
            if (folder / TRIALS).exists():
                search = read_model(folder / TRIALS, Search)

        # 2. Draw the trials, and write them to disk before the first one trains: they are never
        # drawn again.
        if search is None:
            search = draw_search(command)
        if command.resume is None:
            if command.privacy.noise_seed is not None:
                logger.warning(NOT_PRIVATE_SEED)
            hold_new_folder(folder, stack)
            start_anew(folder)
            write_begun(folder)
            if composed is not None:
                composed.write_record(folder)
            (folder / TUNING).mkdir(mode=0o700)
            write_text(folder / TUNE_CONFIGURATION, to_yaml(command), mode=0o600)
        if not (folder / TRIALS).exists():
            write_model(folder / TRIALS, search, mode=0o600)  # synced to disk

        # 3. Train and score each trial that has not ended.
        metric = score_metric(command)
        if (date := read_begun(folder).date) is not None:
            # The day of a trial would reveal how many trials preceded it.
            command = command.replace(task=command.task.begun(date))
        scores: dict[Path, float] = {}
        with hint_of_resume(folder):
            count = command.tune.count
            logger.info(
                "number of trials: secret; %.1f on average, more than %d in one search of 100",
                count.expected, count.quantile(0.01),
            )  # fmt: skip
            for number, trial in enumerate(search.trials):
                path = trial_folder(folder, number)
                if (path / TRIAL_SCORE).exists():
                    trial_score = read_model(path / TRIAL_SCORE, TrialScore)
                else:
                    # Each trial trains on the records for which the noise was calibrated.
                    check_same_records(command, search)
                    exit_code = run_trial(command, search, trial, path, composed)
                    trial_score = TrialScore() if exit_code else score_of(path, metric)
                    # After this file is on disk, the trial never runs again.
                    write_model(path / TRIAL_SCORE, trial_score, mode=0o600)
                # Also needed if the search was killed between the two writes.
                delete_generator_states(path / CHECKPOINTS)
                if trial_score.score is not None:
                    scores[path] = trial_score.score
        if not scores:
            raise RunError(
                f"No trial of the search has a score. The logs in {folder / TUNING}, which must not"
                " be released, contain the reasons."
            )

        # 4. Publish the best trial. Equal trials are equally likely to be drawn first, so take the
        # first.
        with hint_of_resume(folder):
            publish(command, search, max(scores, key=lambda path: scores[path]), folder)


def draw_search(command: TuneCommand) -> Search:
    """Return a calibrated search with drawn trials; the records are only checked and counted.

    Raises:
        InputError: A setting of the search space or the data is invalid, or eps is out of reach.
    """
    base = command.settings()
    guarantee = command.privacy.guarantee
    assert guarantee is not None
    score_metric(command)
    check_fit(base)
    data = _training_data(base)
    divide(base, data)
    # With a noise multiplier of 1, a plan contains all that the calibration needs.
    uncalibrated = guarantee.replace(eps=None, noise_multiplier=1.0)
    settings = command.tuning.settings()
    plans: list[PrivacyPlan] = []
    for setting in settings:
        config = with_setting(base, setting)
        check_fit(config)
        config = with_batch_size(config, lambda: data.num_units)
        plan = plan_run(config.replace(privacy=uncalibrated), lambda: data.num_units).privacy
        assert plan is not None
        plans.append(plan)
    noise_multipliers, calibration = calibrate_trials(
        [plan.event() for plan in plans],
        eps=guarantee.eps or math.nan,
        count=command.tune.count,
    )
    trials = [
        Trial(setting=setting, noise_multiplier=noise_multipliers[settings.index(setting)])
        for setting in draw_trials(command)
    ]
    warn_of_delta(plans[0])
    key = new_key()
    return Search(
        calibration=calibration,
        delta=plans[0].delta,
        key=key.hex(),
        fingerprint=known_by(data, key),
        trials=tuple(trials),
    )


def score_metric(command: TuneCommand) -> MetricSpec:
    """Return the metric by which trials are compared."""
    specs = {spec.reported_as: spec for spec in metric_specs(command.task.metrics)}
    name = command.tune.metric or next(iter(specs), "")
    usable = [key for key, spec in specs.items() if spec.better is not None]
    if name not in usable:
        raise InputError(
            "tune.metric must be one of task.metrics that is maximized or minimized"
            f" ({', '.join(usable)}), got {name or None!r}. Change tune.metric or task.metrics.",
            key="tune.metric",
            value=name or None,
            hint=f"tune.metric={usable[0]}" if usable else None,
        )
    return specs[name]


def draw_trials(command: TuneCommand) -> list[dict[str, Any]]:
    """Return the settings of a random number of trials. The settings and the number are secret."""
    stream = UniformStream(secret_key("tuning", command.privacy.noise_seed))
    number = draw_count(command.tune.count, stream)
    return draw_settings(command.tuning.values(), number, stream)


def check_same_records(command: TuneCommand, search: Search) -> None:
    """Reject training records that differ from the records with which the search began."""
    data = _training_data(command.settings())
    if not hmac.compare_digest(known_by(data, bytes.fromhex(search.key)), search.fingerprint):
        raise InputError(
            "resume needs the training records that the search began with, but these records"
            " differ. Restore the records, or start a new search.",
            key="resume",
            value=command.resume,
        )


def _training_data(config: TrainConfig) -> TrainingData:
    """Return the training records; check them with the model if each trial does so."""
    if not config.task.is_checked_by_model:
        return load_training_data(config)
    model = TrainedModel(architecture=read_architecture(config.model))
    return load_training_data(config, model.encoding(config.task, max_new_tokens=None).check)


def run_trial(
    command: TuneCommand,
    search: Search,
    trial: Trial,
    path: Path,
    composed: Composed | None = None,
) -> int:
    """Train and score one trial with the search's noise and without output; return its exit code.

    An interrupted trial is resumed. A trial without a checkpoint has released nothing and begins
    again.

    Raises:
        OSError: The disk is full or not writable, which does not count as a failure of the trial.
        InputError: The trial was rejected although every setting had been checked, for example
            because a model is gone.
        StateError: The state of an interrupted trial is damaged.
    """
    resumes = bool(checkpoints(path / CHECKPOINTS))
    if not resumes:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
    outcome = ExitStatus()
    not_writable: OSError | None = None
    with (
        owner_only(),
        output_redirected_to(path / TRIAL_LOG),
        errors_reported(outcome, withhold=False),
    ):
        try:
            if resumes:
                config = load_saved(path / CONFIGURATION, TrainConfig)
                if is_base_model(config.model.path or ""):  # The folder may have been moved.
                    config = config.replace(model=config.model.replace(path=command.model.path))
            else:
                config = with_setting(command.settings(), trial.setting)
            train_run(
                config,
                path,
                resumes=resumes,
                noise_multiplier=trial.noise_multiplier,
                calibration=search.calibration,
                composed=composed,
                with_curve=False,
            )
        except OSError as error:
            if error.errno not in FULL_OR_FORBIDDEN:
                raise
            not_writable = error
    if not_writable is not None:
        raise OSError(not_writable.errno, not_writable.strerror, str(path.parent))
    if outcome.exit_code == InputError.exit_code:
        raise InputError(
            f"A trial in {path.parent} was rejected because its inputs changed after the search"
            " began. Fix the cause, which the trial's log contains, and resume, or start a new"
            " search.",
            key=str(path.parent),
        )
    if outcome.exit_code == StateError.exit_code:
        raise StateError(
            f"The state of a trial in {path.parent} is damaged. The trial's log names the file."
        )
    return outcome.exit_code


@contextmanager
def owner_only() -> Iterator[None]:
    """Make files and folders that are created in the block accessible only to the owner."""
    umask_before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask_before)


STANDARD = (1, 2)
"""Descriptors of standard output and standard error. C libraries write to them."""


@contextmanager
def output_redirected_to(path: Path) -> Iterator[None]:
    """Append all output of the block to a file of mode 0600, including output of C code."""
    root = logging.getLogger()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8", buffering=1) as log:
        handler = logging.StreamHandler(log)
        handler.setFormatter(KeyFormatter("%(levelname)s: %(message)s"))
        sys.stdout.flush()
        sys.stderr.flush()
        copies = [os.dup(number) for number in STANDARD]
        handlers_before, root.handlers = root.handlers, [handler]
        try:
            for number in STANDARD:
                os.dup2(log.fileno(), number)
            with redirect_stdout(log), redirect_stderr(log):
                yield
        finally:
            root.handlers = handlers_before
            for number, copy in zip(STANDARD, copies, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def score_of(trial: Path, metric: MetricSpec) -> TrialScore:
    """Return the score of a finished trial: the mean over the parts of its split."""
    values = [
        entry.metrics.get(metric.reported_as, math.nan)
        for entry in read_model(trial / METRICS, Metrics).evaluations
        if entry.stage == "after"
    ]
    mean = math.fsum(values) / len(values) if values else math.nan
    if not math.isfinite(mean):
        return TrialScore()
    return TrialScore(score={HIGHER: mean, LOWER: -mean}[metric.better or HIGHER])


def publish(command: TuneCommand, search: Search, trial: Path, folder: Path) -> None:
    """Copy the best trial into the run's folder; write a new privacy.json and report.

    No copied file names the trial. Every public file has the date and the time at which the search
    began, because the duration of the search would reveal how many trials there were.
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
    trial_privacy = privacy_of(trial)
    assert isinstance(trial_privacy, PrivateRun)
    begun = read_begun(folder)
    privacy = trial_privacy.replace(
        selection=selection_of(command.tune.count, space=command.tuning.values()),
        starting_models=begun.starting_models,
        **begun.when,
    )
    write_model(folder / PRIVACY, privacy)
    write_report(folder, privacy)
    backdate_public_files(folder)


def check_spent(search: Search, folder: Path) -> None:
    """Reject a search with a trial that took more noisy steps than planned."""
    for number in range(len(search.trials)):
        trial = trial_folder(folder, number)
        if not (trial / LEDGER).exists():
            continue
        spent = read_spent(str(trial), trial=True)
        if spent.ledger.steps > spent.plan.steps:
            raise StateError(
                f"A trial in {trial.parent} has taken {spent.ledger.steps} noisy steps of"
                f" {spent.plan.steps} planned, so the bound of the search does not hold. Start a"
                " new search."
            )


def backdate_public_files(folder: Path) -> None:
    """Set the time of every public file to the beginning of the search.

    A later time would reveal an upper bound on the duration of the search, and therefore on the
    number of trials.
    """
    began = (folder / TRIALS).stat().st_mtime_ns
    public = [path for path in folder.iterdir() if path.name != PRIVATE]
    below = [path for top in public for path in top.rglob("*")]
    for path in (*below, *public, folder):
        os.utime(path, ns=(began, began))


def resumed_search(folder: str) -> TuneCommand:
    """Return the original configuration of the search in a folder."""
    path = Path(folder) / TUNE_CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft tune run, got {folder!r}, which"
            f" {what_lacks(Path(folder), TUNE_CONFIGURATION)}.",
            key="resume",
            value=folder,
            hint="resume=outputs/DATE/TIME",
        )
    saved = load_saved(path, TuneCommand)
    return saved.replace(resume=folder, model=kept_here(saved.model, Path(folder)))
