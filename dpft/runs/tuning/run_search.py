"""``dpft tune``: search for the best settings, and pay for the search within privacy.eps.

A secret random number of trials, each of a random setting, is drawn and written down before the
first one trains; each is an ordinary private run in private/tuning. Only the best one's files
become public, with the bound of having chosen it.
"""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from dpft.config.load import load_saved, to_yaml
from dpft.config.schema import POLYMORPHIC
from dpft.config.tune import TuneCommand
from dpft.errors import InputError, RunError, StateError
from dpft.files import write_text
from dpft.links import refuse_links
from dpft.models.loading import quiet_transformers
from dpft.parallel.parallel_config import ParallelConfig, check_start
from dpft.records.form import write_record
from dpft.records.privacy_file import read_privacy
from dpft.records.promises import PrivateRun
from dpft.records.scores import TrialScore
from dpft.records.sweeps import Search
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED
from dpft.reports.run.provenance import with_selection
from dpft.reports.run.report import write_report
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
    TRIALS,
    TUNE_CONFIGURATION,
    TUNING,
    hold_run,
    trial_folder,
)
from dpft.runs.exit_codes import crash_kept
from dpft.runs.folder import (
    WriteRequest,
    read_begun,
    refuse_used_folder,
    start_anew,
    write_begun,
)
from dpft.runs.resuming import hint_of_resume, kept_here
from dpft.runs.spending.spent_run import read_spent
from dpft.runs.tuning.search import (
    draw_search,
    read_search,
    read_trial_score,
    run_trial,
    same_records,
    score_metric,
    score_of,
    write_search,
    write_trial_score,
)
from dpft.training.checkpoint import delete_generator_states


def publish(command: TuneCommand, search: Search, trial: Path, folder: Path) -> None:
    """Copies the best trial into the run's folder; report and privacy.json, the last, are new.

    Nothing copied names the trial, and every public file has the day and the time of the search's
    beginning: how long it took would tell how many trials there were.

    Raises:
        StateError: A trial has spent more than the search's bound covers.
    """
    check_spent(search, folder)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    for source in _released(trial):
        target = folder / source.relative_to(trial)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    won = read_privacy(trial / PRIVACY)
    assert isinstance(won, PrivateRun)
    begun = read_begun(folder)
    won = replace(
        with_selection(won, search.calibration, command.tune.count, space=command.tuning.values()),
        date=begun.date,
        versions=begun.versions,
        commit=begun.commit,
        starting_models=begun.starting_models,
    )
    write_record(folder / PRIVACY, won)
    write_report(folder)
    _hide_duration(folder)


def check_spent(search: Search, folder: Path) -> None:
    """Refuses a search with a trial that took more noisy steps than were planned.

    Raises:
        StateError: There is one; its own ``dpft train resume=`` was told to overspend.
    """
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


def _hide_duration(folder: Path) -> None:
    began = (folder / TRIALS).stat().st_mtime_ns
    public = [path for path in folder.iterdir() if path.name != PRIVATE]
    below = [path for top in public for path in top.rglob("*")]
    for path in (*below, *public, folder):
        os.utime(path, ns=(began, began))


def _released(trial: Path) -> list[Path]:
    files = [trial / name for name in (CONFIGURATION, METRICS, LEDGER)]
    files += [path for pattern in TEXTS_OF_EVALUATIONS for path in trial.glob(pattern)]
    return files + [path for path in (trial / MODEL).rglob("*") if path.is_file()]


logger = logging.getLogger(__name__)


def resumed_search(folder: str) -> TuneCommand:
    """Returns the configuration that the search in a folder was begun with.

    Raises:
        InputError: There is no search.
    """
    path = Path(folder) / TUNE_CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft tune, got {folder!r}, which has no"
            f" {TUNE_CONFIGURATION}; give the folder that the search named."
        )
    saved = load_saved(path, TuneCommand, polymorphic=POLYMORPHIC)
    return replace(saved, resume=folder, model=kept_here(saved.model, Path(folder)))


def run(command: TuneCommand, folder: Path, *, write_request: WriteRequest | None = None) -> None:
    """Searches and publishes the best; a crash's text is kept in the folder's private/.

    Args:
        command: The search's configuration, and whether it goes on.
        folder: Of the search: a new one, or with ``command.resume`` the one to go on in.
        write_request: Writes how a new search, and each of its trials, was asked for.

    Raises:
        InputError: Anything does not fit.
        RunError: No trial has a score.
        StateError: What a search that goes on left is damaged.
    """
    check_start(ParallelConfig())
    quiet_transformers()
    refuse_links(folder)
    with crash_kept(folder):
        if command.resume is None:
            begin(command, folder, write_request)
        else:
            go_on(command, folder, write_request)


def begin(command: TuneCommand, folder: Path, write_request: WriteRequest | None = None) -> None:
    """Draws a search and carries it out."""
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
        write_search(folder, search)
        finish(command, search, folder, write_request)


def go_on(command: TuneCommand, folder: Path, write_request: WriteRequest | None = None) -> None:
    """Carries out what is left of a search; what was drawn stays.

    Raises:
        InputError: The training records are others.
        StateError: What was drawn, or a trial's state, is damaged.
    """
    with hold_run(folder):
        if (folder / REPORT).exists() and (folder / PRIVACY).exists():
            logger.info("the search in %s has ended; nothing is left to do", folder)
            return
        search = read_search(folder)
        if search is None:  # It broke off before anything was trained.
            search = draw_search(command)
            write_search(folder, search)
        same_records(command, search)
        finish(command, search, folder, write_request)


def finish(
    command: TuneCommand,
    search: Search,
    folder: Path,
    write_request: WriteRequest | None = None,
) -> None:
    """Runs the trials that have not ended and publishes the best.

    Raises:
        RunError: None of them has a score.
    """
    spec = score_metric(command)
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
