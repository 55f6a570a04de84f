"""What a model's config.json says, read once and handed on to whatever needs it.

transformers' configuration is mutable, and a head writes its classes into it: nobody is given the
one that was read, each gets a copy.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from dpft.errors import InputError
from dpft.kinds import Head
from dpft.models.heads import configure
from dpft.models.own_tokenizer import fit_to_tokenizer, own_tokenizer_folder
from dpft.models.pooling import PooledClassifier
from dpft.models.source import (
    MEAN,
    ModelConfig,
    check_folder,
    loading_errors,
    origin,
    source,
)

DROPOUT = "drop"
"""In the name of each rate: dropout_rate, hidden_dropout_prob, resid_pdrop, attn_pdrop."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as its config.json describes it, without weights or tokenizer."""

    model: ModelConfig
    """Where the model is, and how it is to be loaded."""
    read: PretrainedConfig
    """What was read; ``config`` hands out copies of it."""

    def config(self, head: Head | None = None) -> PretrainedConfig:
        """Returns a copy of what config.json says, which the caller may change.

        Args:
            head: What the model shall answer with, written into the copy; None: as was read.
        """
        config = copy.deepcopy(self.read)
        if head is not None:
            configure(config, head)
        return config

    @property
    def is_pooled(self) -> bool:
        """Whether the checkpoint was saved with a classification head that pools."""
        return PooledClassifier.__name__ in (self.read.architectures or ())

    @property
    def pooling(self) -> str | None:
        """How a classification head pools: as configured, else as the checkpoint's own does."""
        if self.model.pooling is not None:
            return self.model.pooling
        return MEAN if self.is_pooled or _is_read_by_mean(self.model.folder) else None

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the model has a row for."""
        return int(self.read.get_text_config().vocab_size)


def read_architecture(model: ModelConfig) -> Architecture:
    """Returns the architecture of a model, from config.json alone.

    Raises:
        InputError: It cannot be found, reached or understood.
    """
    if model.folder is not None:
        check_folder(model, model.folder)
    with loading_errors(model):
        read = _read(model)
    if getattr(read, "quantization_config", None) is not None:
        raise InputError(
            f"{origin(model)} is quantized already, by arithmetic that an exact clip may not know;"
            " give its checkpoint of 16 or 32 bits, with model.quantization=nf4 or int8."
        )
    folder = own_tokenizer_folder(model)
    if folder is not None:
        fit_to_tokenizer(read, folder)
    return Architecture(model=model, read=read)


def _is_read_by_mean(folder: Path | None) -> bool:
    """Returns whether a folder of sentence-transformers says that the mean is read."""
    file = None if folder is None else folder / "1_Pooling" / "config.json"
    if file is None or not file.is_file():
        return False
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")).get("pooling_mode_mean_tokens"))
    except (OSError, ValueError, AttributeError):
        return False


def _read(model: ModelConfig) -> PretrainedConfig:
    """Returns the configuration of a folder or repository; out of reach, what stands for it."""
    if model.is_drawn:
        return _drawn(model)
    try:
        found: PretrainedConfig = AutoConfig.from_pretrained(**source(model))
    except OSError:
        if not model.architecture or model.folder is not None:
            raise
        return _drawn(model)
    _set_dropout(found, model)
    return found


def _set_dropout(config: PretrainedConfig, model: ModelConfig) -> None:
    """Writes the dropout rates of ``model.architecture`` into a checkpoint's configuration.

    They are the one part of an architecture that fine-tuning may choose anew: no weight is of
    another shape by them.

    Raises:
        InputError: The architecture has no such rate.
    """
    for name in (name for name in model.architecture if DROPOUT in name):
        if not hasattr(config, name):
            there = ", ".join(sorted(key for key in config.to_dict() if DROPOUT in key))
            raise InputError(
                f"model.architecture.{name} must be a dropout rate of {config.model_type}, which"
                f" has {there or 'none'}; drop it, or give one of those."
            )
        setattr(config, name, model.architecture[name])


def _drawn(model: ModelConfig) -> PretrainedConfig:
    """Returns the configuration that ``model.architecture`` spells out.

    Raises:
        InputError: It names no kind of model that there is.
    """
    values = dict(model.architecture)
    kind = values.pop("model_type", None)
    try:
        made: PretrainedConfig = AutoConfig.for_model(kind, **values)
    except (KeyError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise InputError(
            "model.architecture must name a model_type of transformers, such as t5, and keys of its"
            f" configuration, got model_type={kind!r}."
        ) from error
    return made
