"""The finished runs in some folders, their records held against their ledgers."""

import os
from collections.abc import Sequence
from pathlib import Path

from dpft.errors import InputError
from dpft.links import refuse_links
from dpft.privacy.completeness import knows_the_end
from dpft.reports.run.report import write_report
from dpft.reports.run.run_record import RunRecord, find_runs, read_run
from dpft.run_folder import LEDGER, PRIVATE
from dpft.runs.spending.spent_run import read_ended_ledger


def read_finished_runs(folders: Sequence[Path]) -> tuple[list[RunRecord], list[Path]]:
    """Returns the records of the finished runs in some folders, and the folders of the others.

    Args:
        folders: Of runs, or of sweeps of them.

    Raises:
        InputError: A folder holds none, or none of them has a report, or one has a symbolic link.
        StateError: A run's files are damaged.
    """
    finished, unfinished = find_runs(folders)
    if not finished:
        raise InputError(
            f"runs must name a run that has ended, got {len(unfinished)} that have not; go on with"
            " them by dpft train resume=RUN."
        )
    for folder in finished:
        refuse_links(folder)
        # A report may be handed on without its ledger; where one is, or is known of, it must fit.
        if (folder / LEDGER).exists() or knows_the_end(folder):
            read_ended_ledger(folder)
    return [read_run(folder) for folder in finished], unfinished


def rebuild_report(record: RunRecord) -> None:
    """Writes report.md, report.html and the model's card of a run anew from its public files.

    In the folder of a search every file keeps its time, which is that of the search's beginning:
    another would tell how long the search took at most.

    Args:
        record: As ``read_finished_runs`` gives it.
    """
    public = [path for path in record.folder.glob("*") if path.name != PRIVATE]
    below = [path for top in public for path in top.rglob("*")]
    times = {path: path.stat().st_mtime_ns for path in (*below, *public, record.folder)}
    write_report(record.folder)
    if record.is_of_search:
        for path, time in times.items():
            os.utime(path, ns=(time, time))
