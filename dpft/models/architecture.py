"""A model's config.json, read once: its kind, its positions, and a tokenizer of the user's own.

transformers' configuration is mutable, and a head writes its classes into it: nobody is given the
one that was read, each gets a copy.
"""

import copy
import inspect
import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dpft.errors import InputError
from dpft.files import TOKENIZER
from dpft.kinds import Head
from dpft.models.heads import PooledClassifier, configure
from dpft.models.source import (
    MEAN,
    TOKENIZER_FILES,
    ModelConfig,
    check_folder,
    loading_errors,
    origin,
    source,
)


def own_tokenizer_folder(model: ModelConfig) -> Path | None:
    """Returns the folder of the tokenizer's files; None where the model has its own.

    Raises:
        InputError: There is none.
    """
    if model.tokenizer is None:
        return None
    place = Path(model.tokenizer).expanduser()
    folder = place / TOKENIZER if (place / TOKENIZER).is_dir() else place
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"model.tokenizer must be the folder of a dpft tokenizer run, or of a tokenizer, got"
            f" {model.tokenizer!r}, which holds no tokenizer; give the folder that dpft tokenizer"
            " named, and if that has none yet, go on with it by dpft tokenizer resume=RUN."
        )
    return folder


def load_own_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a folder.

    Raises:
        InputError: It cannot be read.
    """
    try:
        made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # what the library raises for a damaged file is no kind of its own
        raise InputError(
            f"model.tokenizer={folder} could not be read as a tokenizer; give a folder written by"
            " save_pretrained."
        ) from error
    return made


def fit_to_tokenizer(config: PretrainedConfig, folder: Path) -> None:
    """Writes a tokenizer's size and its special tokens into a model's configuration."""
    tokenizer = load_own_tokenizer(folder)
    end = tokenizer.eos_token_id
    pad = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    begin = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    for each in {id(part): part for part in (config, config.get_text_config())}.values():
        each.vocab_size = len(tokenizer)
        each.pad_token_id, each.eos_token_id, each.bos_token_id = pad, end, begin
        if getattr(each, "is_encoder_decoder", False):
            each.decoder_start_token_id = pad


DROPOUT = "drop"
"""In the name of each rate: dropout_rate, hidden_dropout_prob, resid_pdrop, attn_pdrop."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as its config.json describes it, without weights or tokenizer."""

    model: ModelConfig
    """Where the model is, and how it is to be loaded."""
    read: PretrainedConfig
    """The configuration that was read; ``config`` hands out copies."""

    def config(self, head: Head | None = None) -> PretrainedConfig:
        """Returns a copy of what config.json says, which the caller may change."""
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
    """Returns the configuration that ``model.architecture`` spells out."""
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


COUNTS_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "xmod")
"""Architectures whose first position is the one after their padding token's id."""


def takes_position_ids(model: PreTrainedModel) -> bool:
    """Returns whether the model is to be given position ids, 0 for a row's first token.

    Not where it takes none (T5), and not where it counts from its padding token's id (RoBERTa):
    such a model makes its own, a row for each example.
    """
    encoder = model.base_model
    if "position_ids" not in inspect.signature(encoder.forward).parameters:
        return False
    return not any(
        isinstance(module, nn.Embedding) and module.padding_idx is not None
        for name, module in encoder.named_modules()
        if name.endswith("position_embeddings")
    )


def takes_token_types(config: PretrainedConfig) -> bool:
    """Returns whether the model learned to tell two sentences apart by ids of their own (BERT).

    Not every model takes what a generic tokenizer writes, and GPT-2 would add a word's embedding.
    """
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def max_positions(config: PretrainedConfig) -> int | None:
    """Returns the most tokens the model can read; None: no limit (relative positions)."""
    text = config.get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    if positions is None or getattr(text, "position_biased_input", True) is False:
        return None
    # RoBERTa counts positions from its padding token's id on.
    offset = text.pad_token_id + 1 if text.model_type in COUNTS_FROM_PADDING else 0
    return positions - offset
