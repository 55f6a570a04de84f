"""What a run's folder holds before the first score: what it is, and by what it goes on."""

import logging
from pathlib import Path

from dpft.config.load import dump
from dpft.parallel.submitted import submitted_job
from dpft.run_folder import AUDIT_KEY, CONFIGURATION, UNIT_KEY
from dpft.runs.begun import write_begun
from dpft.runs.canary_file import write_canaries
from dpft.runs.folder import WriteRequest, start_anew
from dpft.runs.held_out import keep_key
from dpft.runs.prepared_run import Prepared
from dpft.runs.records import save_key
from dpft.runs.resuming import save_fingerprint
from dpft.runs.spending.starting_models import starting_models

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
    starting = starting_models(prepared.config.model)
    write_begun(folder, asked=asked, job=submitted_job(), starting_models=starting)
    if write_request is not None:
        write_request(folder)
    dump(prepared.config, folder / CONFIGURATION)
    logger.info("run: %s", folder)
    if prepared.unit_key is not None:
        save_key(folder, UNIT_KEY, prepared.unit_key)
    if prepared.canaries:
        save_key(folder, AUDIT_KEY, prepared.audit_key)
        write_canaries(folder, prepared.canaries, prepared.config.task)
    keep_key(folder, prepared.division)
    save_fingerprint(folder, prepared.training_set)
