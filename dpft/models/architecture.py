"""Read a model's config.json: its kind, its number of positions, and the head for a task.

transformers' configuration is mutable, and a head writes its classes into it: nobody is given the
one that was read, each gets a copy.

A head that the checkpoint's own architecture lacks starts at random. It is part of the task, and is
counted apart: ``new_parameters`` of privacy.json (docs/dev/design.md, the run's folder).
`PooledClassifier` reads the mean over a text's tokens, for sentence encoders (Reimers and Gurevych
2019, arXiv 1908.10084), which carry a text's meaning there and have no trained pooler: the classes
of transformers read the first token.
"""

import copy
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto import modeling_auto

from dpft.constants import (
    CAUSAL,
    CLASSIFIER,
    IMAGE_CLASSIFIER,
    LANGUAGE_KINDS,
    MASKED,
    SEQ2SEQ,
    Head,
)
from dpft.errors import InputError
from dpft.models.source import (
    MEAN,
    TOKENIZER_FILES,
    WEIGHT_FILES,
    ModelConfig,
    address,
    check_folder,
    loading_errors,
    origin,
    source,
)
from dpft.run_folder import TOKENIZER


class PooledClassifier(PreTrainedModel):
    """An encoder, the mean of its last layer over the tokens, dropout, and one linear layer."""

    config_class = PretrainedConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def __init__(self, config: PretrainedConfig, encoder: PreTrainedModel | None = None) -> None:
        """Put a fresh head on an encoder, or on a fresh one of the architecture.

        The encoder loses its pooler: the mean takes its place.
        """
        if encoder is None:  # before ``config`` gets this class's kind of attention
            auto_model: Any = AutoModel
            encoder = auto_model.from_config(config, dtype=torch.float32)
        super().__init__(config)
        self.backbone: nn.Module = encoder
        if "pooler" in self.backbone._modules:
            self.backbone.pooler = None
        self.dropout = nn.Dropout(float(getattr(config, "hidden_dropout_prob", 0.0)))
        self.classifier = nn.Linear(
            config.get_text_config().hidden_size, int(config.num_labels or 1)
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the head, as the architectures of transformers do theirs."""
        if module is self.classifier:
            nn.init.normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any
    ) -> SequenceClassifierOutput:
        """Return logits of shape (b, k).

        Args:
            input_ids: Token ids, shape (b, t).
            attention_mask: 1 for tokens and 0 for padding, shape (b, t).
            inputs: Whatever else the encoder takes.
        """
        states = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, **inputs
        ).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
        logits: Tensor = self.classifier(self.dropout(mean))
        return SequenceClassifierOutput(logits=logits)


AUTO_CLASSES: dict[str, Any] = {
    CAUSAL: AutoModelForCausalLM,
    SEQ2SEQ: AutoModelForSeq2SeqLM,
    MASKED: AutoModelForMaskedLM,
    CLASSIFIER: AutoModelForSequenceClassification,
    IMAGE_CLASSIFIER: AutoModelForImageClassification,
}


SEQUENCE_CLASSIFIERS = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
FAULTS_OF_SETTINGS = (TypeError, AttributeError, AssertionError, LookupError, ArithmeticError)
"""Exceptions of a model's class for settings that are unknown or missing in its config.json."""
_CAUSAL_NAMES = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
_MULTIMODAL_NAMES = modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES


def auto_class(config: PretrainedConfig, head: Head) -> Any:
    """Return the auto class that builds a model with a head.

    Some multimodal architectures have a class for text only (Qwen3.5), for others
    `AutoModelForCausalLM` builds the multimodal class (Gemma 3), and others only have a multimodal
    class (Mistral 3, Qwen2.5-VL). The choice follows `AutoModelForCausalLM` wherever possible,
    because peft loads the base of an adapter with it.
    """
    if head.kind == CAUSAL and config.model_type not in _CAUSAL_NAMES:
        return AutoModelForMultimodalLM
    return AUTO_CLASSES[head.kind]


def parts(config: PretrainedConfig) -> list[PretrainedConfig]:
    """Return a configuration and, for a multimodal model, the one of its text model."""
    text = config.get_text_config()
    return [config] if text is config else [config, text]


def language_kind(config: PretrainedConfig) -> str:
    """Return which kind of language model an architecture is.

    Raises:
        InputError: It is none.
    """
    if config.is_encoder_decoder:
        return SEQ2SEQ
    if config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return MASKED
    if config.model_type in _CAUSAL_NAMES or config.model_type in _MULTIMODAL_NAMES:
        return CAUSAL
    raise InputError(
        f"the model must be a causal, masked or seq2seq language model, got model type"
        f" {config.model_type}. Choose another model.",
        key="model",
        value=config.model_type,
    )


def describe(head: Head) -> str:
    """Return a head in words, for messages."""
    if head.kind == IMAGE_CLASSIFIER:
        return "classifier of images"
    return f"{head.kind} language model" if head.kind in LANGUAGE_KINDS else head.kind


def configure(config: PretrainedConfig, head: Head) -> None:
    """Write a classifier's classes into the architecture, where config.json will carry them."""
    if head.kind in LANGUAGE_KINDS:
        return
    padding = padding_id(config) if head.kind == CLASSIFIER else None
    for part in parts(config):
        part.num_labels = head.num_outputs
        if head.kind == CLASSIFIER:
            # A causal classifier answers at a row's last token, known from padding by this id.
            part.pad_token_id = padding
        if head.labels:
            part.id2label = dict(enumerate(head.labels))
            part.label2id = {name: number for number, name in enumerate(head.labels)}


def padding_id(config: PretrainedConfig) -> int:
    """Return the token that fills rows up: padding, end-of-text without it, 0 without both."""
    text = config.get_text_config()
    if text.pad_token_id is not None and text.pad_token_id >= 0:
        return int(text.pad_token_id)
    end = text.eos_token_id
    return int((end[0] if isinstance(end, list) else end) or 0)


@contextmanager
def without_storage() -> Iterator[None]:
    """Have models made inside be of shapes alone; they are tied, and nothing is drawn for them."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """Spares tensors without storage the values that they cannot hold: most of a model's making."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def fresh_model(config: PretrainedConfig, head: Head, pooling: str | None) -> PreTrainedModel:
    """Return a model of the architecture with that head, in float32, at random weights.

    Raises:
        InputError: transformers has no classifier of the architecture, and ``pooling`` is None.
        ValueError: transformers has no other such head for the architecture, or cannot make a
            model of these settings.
    """
    model: PreTrainedModel
    if head.kind == CLASSIFIER and pooling is not None:
        model = PooledClassifier(config)
    elif head.kind == CLASSIFIER and type(config) not in SEQUENCE_CLASSIFIERS:
        raise InputError(
            f"transformers has no classifier for model type {config.model_type}. dpft can classify"
            " by the mean over a text's tokens.",
            key="model.pooling",
            hint="model.pooling=mean",
        )
    else:
        try:
            model = auto_class(config, head).from_config(config, dtype=torch.float32)
        except FAULTS_OF_SETTINGS as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
    # Its weights have no address, though its configuration has one: an adapter would name it.
    model.name_or_path = model.config._name_or_path = ""
    return model


def new_parameters(
    config: PretrainedConfig, head: Head, pooling: str | None, *, num_labels: int | None = None
) -> frozenset[str]:
    """Return the names of what the model has and the checkpoint's own architecture lacks.

    Read off config.json alone, whatever the weights are: ``architectures`` names the class that
    the checkpoint was saved from; a config.json without it stands for the bare encoder, or for
    the language model itself.

    Args:
        config: Of the model, with ``head`` written into it.
        head: What it shall answer with.
        pooling: As in ``fresh_model``.
        num_labels: Classes of the checkpoint's own head: that of an image classifier is another
            where it has others. None: it has the same.
    """
    with without_storage():
        wanted = fresh_model(config, head, pooling)
        saved_class = _checkpoint_class(config, head)
        if saved_class is None or (
            isinstance(wanted, saved_class) and head.kind != IMAGE_CLASSIFIER
        ):
            return frozenset()
        if isinstance(wanted, saved_class):
            if num_labels is None:
                return frozenset()
            # What has another shape with the checkpoint's own number of classes.
            theirs = copy.deepcopy(config)
            theirs.num_labels = num_labels
            their_model = fresh_model(theirs, head, pooling)
            shapes = {name: p.shape for name, p in their_model.named_parameters()}
            return frozenset(n for n, p in wanted.named_parameters() if shapes[n] != p.shape)
        saved = saved_class(copy.deepcopy(config))
        loaded, prefix = wanted, ""
        if isinstance(wanted, PooledClassifier):  # its encoder is loaded, and its head is new
            loaded, prefix = cast(PreTrainedModel, wanted.backbone), "backbone."
        # transformers renames weights when it saves and loads them, so it is asked what is missing
        with_info: Any = type(loaded).from_pretrained(
            None,
            config=loaded.config,
            state_dict=revert_weight_conversion(saved, saved.state_dict()),
            device_map={"": "meta"},
            output_loading_info=True,
        )
    names = {name for name, _ in loaded.named_parameters()} - with_info[1]["missing_keys"]
    read = {f"{prefix}{name}" for name in names}
    return frozenset(name for name, _ in wanted.named_parameters() if name not in read)


def _checkpoint_class(config: PretrainedConfig, head: Head) -> Any:
    """Return the class a checkpoint was saved from, or None if it must be the wanted one."""
    for name in config.architectures or ():
        if name == PooledClassifier.__name__:
            return PooledClassifier
        model_class = getattr(transformers, name, None)
        if model_class is not None:
            return model_class
    if head.kind in (CAUSAL, SEQ2SEQ):
        return None
    return type(AutoModel.from_config(config))


def own_tokenizer_folder(model: ModelConfig) -> Path | None:
    """Return the folder of the tokenizer's files; None where the model has its own.

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
            f" {model.tokenizer!r}, which contains no tokenizer. If the run was interrupted, resume"
            " it with dpft tokenizer resume=RUN.",
            key="model.tokenizer",
            value=model.tokenizer,
        )
    return folder


def load_own_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder.

    Raises:
        InputError: It cannot be read.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # what the library raises for a damaged file is no kind of its own
        raise InputError(
            f"model.tokenizer={folder} cannot be read as a tokenizer. Give a folder written by"
            " save_pretrained.",
            key="model.tokenizer",
            value=str(folder),
        ) from error
    return tokenizer


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
        """Return a copy of what config.json says, which the caller may change."""
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
        """How a classification head pools: as configured, else as the checkpoint's own does.

        A multimodal model without a text classifier in transformers is read by the mean.
        """
        if self.model.pooling is not None:
            return self.model.pooling
        if self.is_pooled or _is_read_by_mean(self.model.folder) or self._has_no_classifier:
            return MEAN
        return None

    @property
    def _has_no_classifier(self) -> bool:
        """Whether the model is multimodal and transformers has no text classifier for it."""
        names = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        return len(parts(self.read)) > 1 and self.read.model_type not in names

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the model has a row for."""
        return int(self.read.get_text_config().vocab_size)


def read_architecture(model: ModelConfig) -> Architecture:
    """Return the architecture of a model, from config.json alone.

    Raises:
        InputError: It cannot be found, reached or understood.
    """
    if model.folder is not None:
        check_folder(model, model.folder)
    key, value = address(model)
    with loading_errors(model):
        read = _read(model)
        read.get_text_config()  # fails for a model with several text models
    if getattr(read, "quantization_config", None) is not None:
        raise InputError(
            f"{origin(model)} is already quantized, and dpft may not clip its arithmetic exactly."
            " Give its checkpoint of 16 or 32 bits, with model.quantization=nf4 or int8.",
            key=key,
            value=value,
        )
    if getattr(read, "transformers_weights", None) is not None:
        raise InputError(
            f"{origin(model)} names its own weight file (transformers_weights in its config.json),"
            f" but dpft reads only {' or '.join(WEIGHT_FILES)}. Remove that key from config.json.",
            key=key,
            value=value,
        )
    folder = own_tokenizer_folder(model)
    if folder is not None:
        # a tokenizer of the run: its size and its special tokens take the place of the model's
        tokenizer = load_own_tokenizer(folder)
        end = tokenizer.eos_token_id
        pad = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        begin = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        for part in parts(read):
            part.vocab_size = len(tokenizer)
            part.pad_token_id, part.eos_token_id, part.bos_token_id = pad, end, begin
            if getattr(part, "is_encoder_decoder", False):
                part.decoder_start_token_id = pad
    return Architecture(model=model, read=read)


def _is_read_by_mean(folder: Path | None) -> bool:
    """Return whether a folder of sentence-transformers says that the mean is read."""
    file = None if folder is None else folder / "1_Pooling" / "config.json"
    if file is None or not file.is_file():
        return False
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")).get("pooling_mode_mean_tokens"))
    except (OSError, ValueError, AttributeError):
        return False


def _read(model: ModelConfig) -> PretrainedConfig:
    """Return the configuration of a folder or repository; out of reach, what stands for it."""
    if model.is_drawn:
        return _drawn(model)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(**source(model))
    except OSError:
        if not model.architecture or model.folder is not None:
            raise
        return _drawn(model)
    for name in (name for name in model.architecture if DROPOUT in name):
        if not hasattr(config, name):
            rates = ", ".join(sorted(key for key in config.to_dict() if DROPOUT in key))
            raise InputError(
                f"model.architecture.{name} must be a dropout rate of {config.model_type}, which"
                f" has {rates or 'none'}. Remove the key, or choose one of these rates.",
                key=f"model.architecture.{name}",
                value=model.architecture[name],
            )
        setattr(config, name, model.architecture[name])
    return config


def _drawn(model: ModelConfig) -> PretrainedConfig:
    """Return the configuration that ``model.architecture`` spells out."""
    values = dict(model.architecture)
    kind = values.pop("model_type", None)
    try:
        config: PretrainedConfig = AutoConfig.for_model(kind, **values)
    except (KeyError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise InputError(
            "model.architecture must name a model_type of transformers, such as t5, and keys of its"
            f" configuration, got model_type={kind!r}.",
            key="model.architecture",
            value=kind,
        ) from error
    return config


COUNTS_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "xmod")
"""Architectures whose first position is the one after their padding token's id."""


def takes_position_ids(model: PreTrainedModel) -> bool:
    """Return whether the model is to be given position ids, 0 for a row's first token.

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
    """Return whether the model learned to tell two sentences apart by ids of their own (BERT).

    Not every model takes what a generic tokenizer writes, and GPT-2 would add a word's embedding.
    """
    return (getattr(config.get_text_config(), "type_vocab_size", None) or 0) > 1


def max_positions(config: PretrainedConfig) -> int | None:
    """Return the most tokens the model can read; None: no limit (relative positions)."""
    text = config.get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    if positions is None or getattr(text, "position_biased_input", True) is False:
        return None
    # Beyond these, a text would change the rotary positions of its whole batch.
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    # The settings of rotary positions: one for each layer type, or one.
    settings = [parameters, *(inner for inner in parameters.values() if isinstance(inner, dict))]
    ropes = [rope for rope in settings if rope.get("rope_type") == "longrope"]
    positions = min([positions, *(rope["original_max_position_embeddings"] for rope in ropes)])
    # RoBERTa counts positions from its padding token's id on.
    offset = text.pad_token_id + 1 if text.model_type in COUNTS_FROM_PADDING else 0
    return positions - offset
