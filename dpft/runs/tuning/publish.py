"""The public side of a search: the best trial's files, and the bound of having chosen it."""

import json
import os
import shutil
from pathlib import Path

from dpft.config.tune import TuneCommand
from dpft.errors import StateError
from dpft.files import write_json
from dpft.records.sweeps import Search
from dpft.reports.run.report import write_report
from dpft.reports.run.selection import with_selection
from dpft.run_folder import (
    CONFIGURATION,
    LEDGER,
    METRICS,
    MODEL,
    PRIVACY,
    PRIVATE,
    TEXTS_OF_EVALUATIONS,
    TRIALS,
    trial_folder,
)
from dpft.runs.begun import KEYS, read_begun
from dpft.runs.spending.spent_run import read_spent


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
    record = json.loads((trial / PRIVACY).read_text(encoding="utf-8"))
    record = with_selection(
        record,
        search.calibration,
        command.tune.count,
        space=command.tuning.values(),
    )
    own = {key: value for key, value in record.items() if key not in KEYS}
    write_json(folder / PRIVACY, own | read_begun(folder))
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
