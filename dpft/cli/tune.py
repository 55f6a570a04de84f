"""``dpft tune``: search for the best settings, and pay for the search within privacy.eps.

A secret random number of trials, each of a random setting, is drawn and written down before the
first one trains; each is an ordinary private run in private/tuning, and only the best becomes
public. What a trial says goes to a log of its own there: nothing here counts them.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from dpft.cli import train
from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.overrides import checked_overrides, given_overrides
from dpft.config.load import load, load_saved, to_yaml
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.config.tune import TuneCommand, with_setting
from dpft.errors import InputError, RunError, StateError
from dpft.files import hold_lock, private_folder, write_text
from dpft.links import refuse_links
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED
from dpft.reports.run.report import CONFIGURATION, PRIVACY, REPORT
from dpft.runs.crashes import FULL_OR_FORBIDDEN, crash_kept
from dpft.runs.exit_codes import exit_code_of_job, say
from dpft.runs.folder import TUNING, refuse_used_folder, start_anew
from dpft.runs.run_plan import RunPlan, plan_run, quiet_transformers
from dpft.runs.tuning.captured_output import everything_to, owner_only
from dpft.runs.tuning.publish import publish
from dpft.runs.tuning.search import (
    Search,
    Trial,
    draw_search,
    read_search,
    same_records,
    trial_folder,
    write_search,
)
from dpft.runs.tuning.trial_scores import (
    Outcome,
    read_outcome,
    score_metric,
    score_of,
    write_outcome,
)
from dpft.training.checkpoint import checkpoints, delete_generator_states

CONFIG = TuneCommand
expand = checked_overrides
COMMAND, LOG = "tune.yaml", "log"
logger = logging.getLogger(__name__)

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def configuration(composed: DictConfig) -> TuneCommand:
    """Returns what Hydra composed, or with ``resume=RUN`` what that search was begun with.

    Raises:
        InputError: It is incomplete or wrong, or ``resume`` comes with anything else.
    """
    if composed.get("resume") is None:
        return load(composed, TuneCommand, polymorphic=POLYMORPHIC)
    folder = str(composed.resume)
    others = sorted(set(given_overrides(HydraConfig.get().overrides.task)) - {"resume"})
    if others:
        raise InputError(
            f"dpft tune resume=RUN goes on as the search was begun, got {others[0]} too; drop it."
        )
    path = Path(folder) / TUNING / COMMAND
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft tune, got {folder!r}, which has no"
            f" {TUNING / COMMAND}; give the folder that the search named."
        )
    return replace(load_saved(path, TuneCommand, polymorphic=POLYMORPHIC), resume=folder)


def run(command: TuneCommand) -> None:
    """Searches and publishes the best; the run's folder is Hydra's, or the one it goes on in."""
    quiet_transformers()
    folder = run_folder() if command.resume is None else Path(command.resume)
    refuse_links(folder)
    with crash_kept(folder):
        if command.resume is None:
            begin(command, folder)
        else:
            go_on(command, folder)


def begin(command: TuneCommand, folder: Path) -> None:
    """Draws a search and carries it out."""
    refuse_used_folder(folder)
    search = draw_search(command)
    if command.privacy.noise_seed is not None:
        logger.warning(NOT_PRIVATE_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(private_folder(folder) / "lock"):
        refuse_used_folder(folder)
        start_anew(folder)
        write_hydra_record(folder)
        (folder / TUNING).mkdir(mode=0o700)
        write_text(folder / TUNING / COMMAND, to_yaml(command), mode=0o600)
        write_search(folder, search)
        finish(command, search, folder)


def go_on(command: TuneCommand, folder: Path) -> None:
    """Carries out what is left of a search; what was drawn stays.

    Raises:
        InputError: The training records are others.
        StateError: What was drawn, or a trial's state, is damaged.
    """
    with hold_lock(private_folder(folder) / "lock"):
        if (folder / REPORT).exists() and (folder / PRIVACY).exists():
            logger.info("the search in %s has ended; nothing is left to do", folder)
            return
        search = read_search(folder)
        if search is None:  # It broke off before anything was trained.
            search = draw_search(command)
            write_search(folder, search)
        same_records(command, search)
        finish(command, search, folder)


def finish(command: TuneCommand, search: Search, folder: Path) -> None:
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
            outcome = read_outcome(path)
            if outcome is None:
                code = run_trial(command, search, trial, path)
                outcome = Outcome(score=None) if code else score_of(path, spec)
                write_outcome(path, outcome)
            # it never runs again; also where a search was killed between the two
            delete_generator_states(path / "private" / "checkpoints")
            if outcome.score is not None:
                ended.append((outcome.score, path))
    if not ended:
        raise RunError(
            f"the search ended without a single score; the logs in {folder / TUNING}, which must"
            " not be released, say why."
        )
    with hint_of_resume(folder):
        # The first of equal ones: trials are drawn alike, so that is any of them.
        publish(command, search, max(ended, key=lambda one: one[0])[1], folder)
    logger.info("report: %s", folder / REPORT)


def run_trial(command: TuneCommand, search: Search, trial: Trial, path: Path) -> int:
    """Trains and scores one trial, heard by nobody, and returns its exit code.

    A trial without a checkpoint has released nothing and is begun anew.

    Raises:
        OSError: The disk is full or may not be written to: no trial's own failure.
        InputError: It was refused, as for a model that is gone: every setting had been checked.
        StateError: What it left is damaged.
    """
    goes_on = bool(checkpoints(path / "private" / "checkpoints"))
    if not goes_on:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
    full: list[OSError] = []

    def job() -> None:
        try:
            train_trial(command, search, trial, path, goes_on=goes_on)
        except OSError as error:
            if error.errno not in FULL_OR_FORBIDDEN:
                raise
            full.append(error)

    with owner_only(), everything_to(path / LOG):
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
    command: TuneCommand, search: Search, trial: Trial, path: Path, *, goes_on: bool
) -> None:
    """Trains one trial as ``dpft train`` does, with the noise that the search gave its setting."""
    if goes_on:
        saved = load_saved(path / CONFIGURATION, TrainConfig, polymorphic=POLYMORPHIC)
        train.go_on(saved, path)
        return
    config = with_setting(command.settings(), trial.setting)

    def planner(config: TrainConfig, count_units: Callable[[], int]) -> RunPlan:
        assert config.privacy.guarantee is not None
        noise = trial.noise_multiplier
        privacy = replace(config.privacy.guarantee, eps=None, noise_multiplier=noise)
        plan = plan_run(replace(config, privacy=privacy), count_units)
        assert plan.privacy is not None
        return replace(plan, privacy=replace(plan.privacy, calibration=search.calibration))

    train.begin(config, path, planner)


@contextmanager
def hint_of_resume(folder: Path) -> Iterator[None]:
    """Says, when the block breaks off, how to go on; not where the folder is corrupted."""
    try:
        yield
    except StateError:
        raise
    except BaseException:
        here = Path.cwd()
        short = folder.relative_to(here) if folder.is_relative_to(here) else folder
        say(f"to go on: dpft tune resume={short}")
        raise
