"""The configuration of a run whose training has ended, from its folder.

It stands apart from the run's model (``trained_model``) so that a command that names a run is
checked before torch is imported.
"""

from pathlib import Path

from dpft.config.load import load_saved
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.errors import InputError, StateError
from dpft.links import refuse_links
from dpft.run_folder import CONFIGURATION, LEDGER, MODEL
from dpft.runs.spending.spent_run import check_model, read_ended_ledger


def saved_run(folder: str) -> TrainConfig:
    """Returns the configuration of a run whose training has ended.

    Raises:
        InputError: There is no such folder, it has a symbolic link in it, or its training has not
            ended.
        StateError: Its ledger is damaged or gone.
    """
    refuse_links(Path(folder))
    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        missing = f"has no {CONFIGURATION}" if Path(folder).is_dir() else "does not exist"
        raise InputError(
            f"run must be the folder of a dpft run, got {folder!r}, which {missing}; give the "
            "folder that `dpft train` named, such as outputs/DATE/TIME."
        )
    config: TrainConfig = load_saved(path, TrainConfig, polymorphic=POLYMORPHIC)
    if not _has_ended(Path(folder), config):
        raise InputError(
            f"run must be the folder of a run whose training has ended, got {folder!r}, whose "
            f"training has not; wait for it, or go on with it by dpft train resume={folder}."
        )
    return config


def _has_ended(folder: Path, config: TrainConfig) -> bool:
    if not (folder / MODEL).is_dir():
        return False
    ledger = read_ended_ledger(folder)
    if ledger is not None:
        check_model(folder, ledger)
        return ledger.closed
    if config.privacy.guarantee is not None:
        raise StateError(
            f"{folder / LEDGER} is gone, so nothing shows what the run spent; put it back as it"
            " was."
        )
    return True
