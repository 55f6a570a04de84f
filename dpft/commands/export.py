"""``dpft export``: a run's model as a folder to hand on, with the record of what it guarantees.

Merging an adapter is arithmetic on the trained weights, post-processing, so epsilon is the run's.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpft.commands.guarantee import read_finished_run
from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import trained_model_of_run
from dpft.config.schema import ExportConfig, TrainConfig
from dpft.errors import InputError
from dpft.model_digest import recorded_base, write_released
from dpft.models.loading import quiet_transformers
from dpft.reports.report import write_card
from dpft.run_folder import EXPORT, LEDGER, MODEL, PRIVACY, hold_run, share
from dpft.strict_model import write_model

logger = logging.getLogger(__name__)


def export(config: ExportConfig) -> None:
    """Writes the folder: the model, merged or as it was saved, its digests, privacy.json, ledger.

    Raises:
        InputError: There is no such run, the folder is there already, or the weights cannot be
            merged.
    """
    quiet_transformers()
    folder = Path(config.run)
    saved = saved_run(config.run)
    target = new_folder(folder, config.to)
    with hold_run(folder):
        whole = saved.method.saves_whole_model
        write = merged(folder, saved) if config.merge and not whole else copied(folder, saved)
        with whole_or_absent(target) as partial:
            write(partial, target)
            write_released(partial, None if config.merge else recorded_base(folder / MODEL))
            if (folder / PRIVACY).exists():
                record = read_finished_run(folder)
                write_model(partial / PRIVACY, record.privacy)
                if (folder / LEDGER).exists():
                    shutil.copy(folder / LEDGER, partial / LEDGER)
                write_card(record, partial)
            else:
                logger.warning("%s has no %s, so none is exported", folder, PRIVACY)
    logger.info("model: %s", target)


def new_folder(folder: Path, to: str | None) -> Path:
    """Returns the folder to write.

    Raises:
        InputError: It is there, or cannot be made, or is a part of the model to export.
    """
    target = folder / EXPORT if to is None else Path(to).expanduser()
    if target.exists() or target.is_symlink():
        raise InputError(f"to must be a new folder, got {target}, which exists; choose another.")
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"to must be a new folder, got {target}, but {above} is a file.")
    if target.resolve().is_relative_to((folder / MODEL).resolve()):
        raise InputError(
            f"to must be outside the model that is exported, got {target}; choose another."
        )
    return target


@contextmanager
def whole_or_absent(target: Path) -> Iterator[Path]:
    """Gives a folder to write that becomes ``target`` if all goes well, and else is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


Write = Callable[[Path, Path], None]
"""Writes the model into the first folder, which will be called the second."""


def copied(folder: Path, saved: TrainConfig) -> Write:
    """Returns what writes the model as the run saved it.

    Raises:
        InputError: The folder holds no model of the run's method.
        StateError: The base that the run's configuration names is at hand, and another one.
    """
    try:
        trained_model_of_run(folder, saved)
    except InputError as error:
        if saved.method.saves_whole_model:
            raise
        # A base that is not at hand is none of the copy, but its card names one.
        logger.warning("whether the copied adapter's base is the run's was not seen: %s", error)

    def write(partial: Path, target: Path) -> None:
        shutil.copytree(folder / MODEL, partial)
        saved.method.relocate(partial, target)

    return write


def merged(folder: Path, saved: TrainConfig) -> Write:
    """Returns what writes the model as one that needs no base; merges before anything is written.

    Raises:
        InputError: The method's weights cannot be merged.
    """
    trained_model = trained_model_of_run(folder, saved)
    head = trained_model.head(saved.task)
    model = saved.method.merge(trained_model.load(head, dequantizes=True))
    if saved.model.is_quantized:
        logger.info(
            "the base's weights are exported in float32, of the values that model.quantization=%s"
            " gave them: about %d times the size that it trained at",
            *(saved.model.quantization, 8 if saved.model.quantization == "nf4" else 4),
        )
    processor = trained_model.processor(saved.task, head)

    def write(partial: Path, target: Path) -> None:
        partial.mkdir()
        model.save_pretrained(partial, safe_serialization=True)
        processor.save_pretrained(partial)
        share(partial)

    return write
