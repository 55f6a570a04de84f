"""``dpft export``: write a run's model and its privacy record to a folder for other people.

Merging an adapter is arithmetic on the trained weights, post-processing, so epsilon is the run's.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from dpft.commands.guarantee import read_finished_run
from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import trained_model_of_run
from dpft.config.schema import ExportConfig, TrainConfig
from dpft.errors import InputError
from dpft.model_digest import recorded_base, write_released
from dpft.models.loading import quiet_transformers
from dpft.reports.report import write_card
from dpft.run_folder import EXPORT, LEDGER, MODEL, PRIVACY, apply_umask, hold_run
from dpft.strict_model import write_model

logger = logging.getLogger(__name__)


def export(config: ExportConfig) -> None:
    """Write the folder: the model, merged or as it was saved, its digests, privacy.json, ledger.

    Raises:
        InputError: There is no such run, the folder is there already, or the weights cannot be
            merged.
        StateError: An adapter's base is at hand, and not the one that the run trained on.
    """
    quiet_transformers()
    folder = Path(config.run)
    saved = saved_run(config.run)
    target = new_folder(folder, config.to)
    with hold_run(folder):
        # 1. The model. Weights are merged before anything is written.
        merged = None
        if config.merge and not saved.method.saves_whole_model:
            merged = merged_model(folder, saved)
        else:
            check_saved_model(folder, saved)

        # 2. The files.
        with whole_or_absent(target) as partial:
            if merged is not None:
                partial.mkdir()
                model, processor = merged
                model.save_pretrained(partial, safe_serialization=True)
                processor.save_pretrained(partial)
                apply_umask(partial)
            else:
                shutil.copytree(folder / MODEL, partial)
                saved.method.relocate(partial, target)
            write_released(partial, None if config.merge else recorded_base(folder / MODEL))

            # 3. What the run guarantees.
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
        raise InputError(
            f"to must be a new folder, but {target} exists. Choose another folder.",
            key="to",
            value=to,
        )
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir():
        raise InputError(
            f"to must be a new folder, got {target}, but {above} is a file.", key="to", value=to
        )
    if target.resolve().is_relative_to((folder / MODEL).resolve()):
        raise InputError(
            f"to must be outside the model that is exported, got {target}. Choose another folder.",
            key="to",
            value=to,
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


def check_saved_model(folder: Path, saved: TrainConfig) -> None:
    """Check that a run's folder has the model of its method, and its base if that is at hand.

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


def merged_model(folder: Path, saved: TrainConfig) -> tuple[PreTrainedModel, Any]:
    """Return the run's model with the adapter merged into its base, and its tokenizer.

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
    return model, trained_model.processor(saved.task, head)
