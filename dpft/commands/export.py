"""``dpft export``: write a run's model and its privacy record to a folder, or upload them.

The folder loads without dpft: transformers and peft read it, and the Hugging Face Hub reads its
model card. It contains no file of ``private/``. Merging an adapter only adds trained weights, which
is post-processing, so epsilon does not change.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import GenerationConfig

from dpft.commands.guarantee import read_finished_run
from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import TrainedModel, trained_model_of_run
from dpft.config.schema import ExportConfig, TrainConfig
from dpft.constants import CAUSAL, CLASSIFIER, SEQ2SEQ, Head
from dpft.errors import InputError
from dpft.hub import check_upload, upload
from dpft.methods.adapter_files import base_folder, name_base
from dpft.model_digest import ADAPTER, recorded_base, write_released
from dpft.models.architecture import PooledClassifier, auto_class, padding_id
from dpft.models.loading import quiet_transformers
from dpft.models.source import ModelConfig
from dpft.reports.card import HEAD, ExportedModel, write_card
from dpft.run_folder import EXPORT, LEDGER, MODEL, PRIVACY, apply_umask, hold_run
from dpft.strict_model import write_model

logger = logging.getLogger(__name__)


def export(config: ExportConfig) -> None:
    """Write the model, its digests, privacy.json, the ledger and the model card.

    Raises:
        InputError: The run does not exist, the folder exists, the weights cannot be exported in
            this way, or the Hub rejects the upload.
        StateError: The base of the run's adapter differs from the model that the run trained on.
    """
    quiet_transformers()
    folder = Path(config.run)
    saved = saved_run(config.run)
    is_kept = not config.dry_run and (config.to is not None or config.push_to_hub is None)
    target = new_folder(folder, config.to) if is_kept else None
    if config.push_to_hub is not None and not config.dry_run:
        check_upload(config.push_to_hub, private=config.private)
    with hold_run(folder), _written_folder(target) as partial:
        trained_model = trained_model_of_run(folder, saved)
        head = trained_model.head(saved.task)
        facts = exported_model(config, saved, trained_model, head)

        # 1. The model.
        if saved.method.saves_whole_model or config.merge:
            write_whole_model(partial, folder / MODEL, saved, trained_model, head)
        else:
            copy_adapter(partial, folder / MODEL, saved, trained_model, facts)
        write_released(partial, None if config.merge else recorded_base(folder / MODEL))

        # 2. The guarantee of the run.
        record = read_finished_run(folder)
        write_model(partial / PRIVACY, record.privacy)
        if (folder / LEDGER).exists():
            shutil.copy(folder / LEDGER, partial / LEDGER)
        write_card(record, facts, partial)

        # 3. The upload.
        if config.dry_run:
            print_export(partial)
        elif config.push_to_hub is not None:
            message = f"Upload {saved.model.name} trained with dpft"
            address = upload(partial, config.push_to_hub, private=config.private, message=message)
            logger.info("uploaded: %s", address)
    if target is not None:
        logger.info("model: %s", target)


def new_folder(folder: Path, to: str | None) -> Path:
    """Return the folder to write.

    Raises:
        InputError: The folder exists, cannot be created, or is inside the model to export.
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
def _written_folder(target: Path | None) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` on success; a temporary folder for None."""
    if target is not None:
        with whole_or_absent(target) as partial:
            yield partial
        return
    with tempfile.TemporaryDirectory(prefix="dpft-export-") as folder:
        yield Path(folder)


@contextmanager
def whole_or_absent(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` on success and is deleted on failure."""
    above = next(parent for parent in target.parents if parent.exists())
    partial = above / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def exported_model(
    config: ExportConfig, saved: TrainConfig, trained_model: TrainedModel, head: Head
) -> ExportedModel:
    """Return the facts about the exported model that its model card states.

    Raises:
        InputError: The license or the base model is not known, or the adapter cannot be loaded
            without dpft.
    """
    method, architecture = saved.method, trained_model.architecture
    is_adapter = not method.saves_whole_model and not config.merge
    is_random = saved.model.init == "random"
    base_model = config.base_model or (None if is_random else saved.model.hub_name)
    has_base = trained_model.folder is not None and base_folder(trained_model.folder) is not None
    if is_adapter and base_model is None and not has_base:
        raise InputError(
            "base_model must be the Hub id of the base model, because an exported adapter names its"
            " base. Alternatively, export a whole model with merge=true.",
            key="base_model",
            hint="base_model=USER/NAME",
        )
    reason = None
    if head.kind == CLASSIFIER and architecture.pooling is not None:
        reason = "transformers has no class for a classifier with mean pooling"
    elif saved.task.special_tokens and not has_base:
        reason = f"task={saved.task.name} adds tokens that the base model lacks"
    if is_adapter and reason is not None:
        raise InputError(
            f"merge must be true, because {reason}, so peft cannot load the adapter.",
            key="merge",
            value=False,
            hint="merge=true",
        )
    model_license = config.license or saved.model.license or _license_of_card(saved.model)
    if model_license is None:
        raise InputError(
            "license must be given, because the card of the base model does not state it. Use a"
            " license identifier of the Hub.",
            key="license",
            hint="license=apache-2.0",
        )
    model_config = architecture.config(head)
    options = {}
    if head.kind == CLASSIFIER:
        options = {"num_labels": head.num_outputs, "pad_token_id": padding_id(model_config)}
    return ExportedModel(
        kind=head.kind,
        auto_class=auto_class(model_config, head).__name__,
        base_model=base_model,
        license=model_license,
        repository=config.push_to_hub,
        options=options,
    )


def _license_of_card(model: ModelConfig) -> str | None:
    """Return the license in the model card of a local base model, or None."""
    from huggingface_hub import metadata_load

    card = None if model.folder is None else model.folder / "README.md"
    if card is None or not card.is_file():
        return None
    stated = (metadata_load(card) or {}).get("license")
    return stated if isinstance(stated, str) else None


def write_whole_model(
    to: Path, model_folder: Path, saved: TrainConfig, trained_model: TrainedModel, head: Head
) -> None:
    """Write a model that transformers loads without dpft, merged with its adapter if it has one.

    Raises:
        InputError: The weights of the method cannot be merged.
    """
    is_pooled = head.kind == CLASSIFIER and trained_model.architecture.pooling is not None
    if saved.method.saves_whole_model and not is_pooled:
        shutil.copytree(model_folder, to, dirs_exist_ok=True)
        return
    model: Any = saved.method.merge(trained_model.load(head, dequantizes=True))
    if saved.model.is_quantized:
        logger.info(
            "exporting the base model's quantized weights (%s) in float32: about %d times their"
            " size during training",
            *(saved.model.quantization, 8 if saved.model.quantization == "nf4" else 4),
        )
    if isinstance(model, PooledClassifier):
        head_weights = {k: v.contiguous() for k, v in model.classifier.state_dict().items()}
        save_file(head_weights, to / HEAD, metadata={"format": "pt"})
        model = model.backbone
    model.save_pretrained(to, safe_serialization=True)
    trained_model.processor(saved.task, head).save_pretrained(to)
    apply_umask(to)


def copy_adapter(
    to: Path,
    model_folder: Path,
    saved: TrainConfig,
    trained_model: TrainedModel,
    facts: ExportedModel,
) -> None:
    """Copy an adapter and its tokenizer, with the Hub id of its base instead of a local path."""
    shutil.copytree(model_folder, to, dirs_exist_ok=True)
    has_base = base_folder(to) is not None
    if (to / ADAPTER).exists():
        revision = saved.model.revision if facts.base_model == saved.model.hub_name else None
        name_base(to, None if has_base else facts.base_model, revision)
    if facts.kind in (CAUSAL, SEQ2SEQ):
        _generation_config(trained_model).save_pretrained(to)


def _generation_config(trained_model: TrainedModel) -> GenerationConfig:
    """Return the generation configuration of an adapter's base model."""
    model = trained_model.architecture.model
    source = model.folder or model.hub_name
    try:
        if source is not None:
            return GenerationConfig.from_pretrained(source, revision=model.revision or "main")
    except OSError:  # the base has no generation configuration
        pass
    return GenerationConfig.from_model_config(trained_model.architecture.config())


def print_export(folder: Path) -> None:
    """Print the names and sizes of the files of an export, and its model card."""
    from dpft.reports.card import CARD

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    width = max(len(path.relative_to(folder).as_posix()) for path in files)
    for path in files:
        print(f"{path.relative_to(folder).as_posix():{width}}  {path.stat().st_size:>13,} bytes")
    print(f"\n{(folder / CARD).read_text(encoding='utf-8')}", end="")
