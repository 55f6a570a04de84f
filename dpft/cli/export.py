"""``dpft export``: a run's model as a folder to hand on, with the record of what it guarantees.

Merging is arithmetic on the trained weights, post-processing, so epsilon is the run's.
"""

import logging
import shutil
from pathlib import Path

from dpft.cli.assembly import quiet_transformers
from dpft.cli.trained import MODEL, saved_run, subject_of_run
from dpft.config.schema import ExportConfig, TrainConfig
from dpft.errors import InputError
from dpft.files import hold_lock, private_folder
from dpft.reports.run import PRIVACY

CONFIG = ExportConfig
logger = logging.getLogger(__name__)

__all__ = ["CONFIG", "run"]


def run(config: ExportConfig) -> None:
    """Writes the folder: the run's model, merged or as it was saved, and privacy.json."""
    quiet_transformers()
    folder = Path(config.run)
    saved = saved_run(config.run)
    target = folder / "export" if config.to is None else Path(config.to).expanduser()
    if target.exists():
        raise InputError(f"to must be a new folder, got {target}, which exists; choose another.")
    with hold_lock(private_folder(folder) / "lock"):
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        if config.merge:
            write_merged(folder, saved, partial)
        else:
            shutil.copytree(folder / MODEL, partial)
        if (folder / PRIVACY).exists():
            shutil.copy(folder / PRIVACY, partial / PRIVACY)
        partial.rename(target)
    logger.info("model: %s", target)


def write_merged(folder: Path, saved: TrainConfig, target: Path) -> None:
    """Writes a run's model as one that needs no base.

    Raises:
        InputError: The method's weights cannot be merged.
    """
    subject = subject_of_run(folder, saved)
    head = subject.head(saved.task)
    merged = saved.method.merge(subject.load(head))
    target.mkdir(parents=True)
    merged.save_pretrained(target, safe_serialization=True)
    subject.tokenizer(head).save_pretrained(target)
