"""Runs of the ``dpft`` command that a table is made of: each is run once, and kept."""

import subprocess
import sys
import time
from pathlib import Path

from dpft.reports.run_record import read_own_evaluations

SECONDS = "seconds"


def kept_run(folder: Path, *words: str) -> Path:
    """Return a run's folder; it is run unless its report is there.

    Args:
        folder: Of the run; what it says goes into a file beside it.
        words: Of the command.
    """
    if (folder / "report.md").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with folder.with_name(f"{folder.name}.log").open("w") as log:
        command = [sys.executable, "-m", "dpft", *words, f"hydra.run.dir={folder}"]
        subprocess.run(command, check=True, stdout=log, stderr=log)
    (folder / SECONDS).write_text(str(time.monotonic() - begun))
    return folder


def score(run: Path, metric: str) -> float:
    """Return a score after training."""
    entries = read_own_evaluations(run)
    return float(next(e.metrics[metric] for e in entries if e.stage == "after"))


def seconds_of(run: Path) -> float:
    """Return how long a kept run took."""
    return float((run / SECONDS).read_text())
