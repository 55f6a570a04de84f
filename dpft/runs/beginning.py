"""What a run's folder holds before the first score: what it is, and by what it goes on."""

import logging
from pathlib import Path

from dpft.config.load import dump
from dpft.parallel.submitted import submitted_job
from dpft.run_folder import CONFIGURATION
from dpft.runs.begun import write_begun
from dpft.runs.folder import WriteRequest, start_anew
from dpft.runs.held_out import keep_key
from dpft.runs.prepared_run import Prepared
from dpft.runs.records import save_unit_key
from dpft.runs.resuming import save_fingerprint

logger = logging.getLogger(__name__)


def write_beginning(
    prepared: Prepared, folder: Path, write_request: WriteRequest | None, *, asked: str
) -> None:
    """Writes into a run's folder what it begins with.

    Args:
        prepared: The run.
        folder: Its own, which this process holds.
        write_request: Writes how the run was asked for.
        asked: What tells the configuration that was asked for from any other.
    """
    start_anew(folder)
    write_begun(folder, asked=asked, job=submitted_job())
    if write_request is not None:
        write_request(folder)
    dump(prepared.config, folder / CONFIGURATION)
    logger.info("run: %s", folder)
    if prepared.unit_key is not None:
        save_unit_key(folder, prepared.unit_key)
    keep_key(folder, prepared.division)
    save_fingerprint(folder, prepared.training_set)
