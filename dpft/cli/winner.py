"""The public side of a search: the best trial's files, and the bound of having chosen it."""

import json
import shutil
from pathlib import Path

from dpft.cli.scores import TEXTS_OF_EVALUATIONS
from dpft.cli.search import Search
from dpft.cli.trained import MODEL
from dpft.config.tune import TuneCommand
from dpft.files import write_json
from dpft.reports.run import CONFIGURATION, METRICS, PRIVACY, write_report
from dpft.reports.selection import with_selection
from dpft.training.resume import LEDGER


def publish(command: TuneCommand, search: Search, trial: Path, folder: Path) -> None:
    """Copies the best trial into the run's folder; report and privacy.json, the last, are new.

    Nothing copied names the trial, and no file keeps its time.
    """
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
    write_json(folder / PRIVACY, record)
    write_report(folder)


def _released(trial: Path) -> list[Path]:
    files = [trial / name for name in (CONFIGURATION, METRICS, LEDGER)]
    files += [path for pattern in TEXTS_OF_EVALUATIONS for path in trial.glob(pattern)]
    return files + [path for path in (trial / MODEL).rglob("*") if path.is_file()]
