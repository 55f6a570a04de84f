"""One trial of a search: an ordinary private run that nobody hears, in private/tuning.

What a trial says goes to a log of its own there: nothing public counts them.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dpft.config.load import load_saved
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.config.tune import TuneCommand, with_setting
from dpft.errors import InputError, StateError
from dpft.records.sweeps import Search, Trial
from dpft.run_folder import CHECKPOINTS, CONFIGURATION, TRIAL_LOG, is_base_model
from dpft.runs.crashes import FULL_OR_FORBIDDEN
from dpft.runs.exit_codes import exit_code_of_job
from dpft.runs.folder import WriteRequest
from dpft.runs.run import begin, go_on
from dpft.runs.run_plan import RunPlan, plan_run
from dpft.runs.tuning.captured_output import everything_to, owner_only
from dpft.training.checkpoint import checkpoints


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
