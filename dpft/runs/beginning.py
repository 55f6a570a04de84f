"""What a run writes into its folder before the first score: what it is, and what it resumes from.

Among it is what the model that the run starts from has promised already, as its own privacy.json
states. Training a private model without the records that made it is post-processing: its epsilon
for them stays, whatever it is trained on next. Where the same people are in both data sets, the
costs add up (simple composition; Dwork and Roth 2014, theorem 3.16), which a report can only say:
nobody tells dpft who they are.
"""

import logging
from pathlib import Path

from dpft.config.load import dump
from dpft.models.source import ModelConfig
from dpft.parallel.submitted import submitted_job
from dpft.privacy.completeness import knows_the_end
from dpft.records.form import keys_of
from dpft.records.privacy_file import RunPrivacy, read_privacy
from dpft.records.promises import OpenRun, PrivateRun, StartingModel
from dpft.released import check_released
from dpft.run_folder import AUDIT_KEY, CONFIGURATION, LEDGER, MODEL, PRIVACY, UNIT_KEY
from dpft.runs.folder import WriteRequest, start_anew, write_begun
from dpft.runs.held_out import keep_key
from dpft.runs.prepared_run import Prepared
from dpft.runs.records import save_key
from dpft.runs.resuming import save_fingerprint
from dpft.runs.spending.spent_run import read_ended_ledger
from dpft.runs.training_data import write_canaries


def starting_models(model: ModelConfig) -> list[StartingModel]:
    """Returns what each private training promised that a model has behind it, the last one first.

    Args:
        model: ``model.path`` is a run's model, or an exported one; another has none.

    Raises:
        InputError: Its privacy.json is of another schema version.
        StateError: It is damaged, or contradicts the ledger beside it.
    """
    record = _record_beside(model)
    if record is None:
        return []
    earlier = [*(record.starting_models or ())]
    return [_promised_by(record), *earlier] if isinstance(record, PrivateRun) else earlier


def _record_beside(model: ModelConfig) -> RunPrivacy | None:
    """Returns the privacy.json that lies beside a model's folder, or in an exported one."""
    if model.path is None:
        return None
    folder = Path(model.path).expanduser().resolve()
    places = [folder / PRIVACY, *([folder.parent / PRIVACY] if folder.name == MODEL else [])]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        return None
    if (found.parent / LEDGER).exists() or knows_the_end(found.parent):
        ledger = read_ended_ledger(found.parent)
        if ledger is not None and folder == found.parent / MODEL:
            check_released(folder, ledger.released, ledger=found.parent / LEDGER)
    record = read_privacy(found)
    return record if isinstance(record, PrivateRun | OpenRun) else None


def _promised_by(record: PrivateRun) -> StartingModel:
    kept = {key.field: getattr(record, key.field) for key in keys_of(StartingModel)}
    return StartingModel(**{**kept, "ledger": record.ledger.head})


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
