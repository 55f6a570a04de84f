"""The finished runs in some folders, their records held against their ledgers."""

from collections.abc import Sequence
from pathlib import Path

from dpft.errors import InputError
from dpft.links import refuse_links
from dpft.privacy.completeness import knows_the_end
from dpft.reports.run.run_record import RunRecord, find_runs, read_record
from dpft.run_folder import LEDGER
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
    return [read_record(folder) for folder in finished], unfinished
