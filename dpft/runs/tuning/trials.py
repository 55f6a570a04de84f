"""One trial of a search: an ordinary private run in private/tuning, whose output nobody sees.

Everything that a trial prints goes to a log of its own there: how often it prints is a secret,
since nothing public may count the trials.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import IO

from dpft.config.keys import KeyFormatter
from dpft.config.load import load_saved
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.config.tune import TuneCommand, with_setting
from dpft.errors import InputError, StateError
from dpft.records.sweeps import Search, Trial
from dpft.run_folder import CHECKPOINTS, CONFIGURATION, TRIAL_LOG, is_base_model
from dpft.runs.exit_codes import FULL_OR_FORBIDDEN, exit_code_of_job
from dpft.runs.folder import WriteRequest
from dpft.runs.run import begin, go_on
from dpft.runs.run_plan import RunPlan, plan_run
from dpft.training.checkpoint import checkpoints

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
