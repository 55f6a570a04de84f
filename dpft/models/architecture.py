"""Architectures from config.json: model kind, number of positions, and the head for a task.

The configuration of transformers is mutable, and a head writes its classes into it. Callers
therefore get copies of the configuration that was read.

If the checkpoint has no suitable head, a new head with random weights is added. Its parameters are
counted separately, as ``new_parameters`` in privacy.json (docs/dev/design.md, the run's folder).
`PooledClassifier` reads the mean over a text's tokens, for sentence encoders (Reimers and Gurevych
2019, arXiv 1908.10084). Sentence encoders represent the meaning of a text in this mean and have no
trained pooler. The classes of transformers read the first token instead.
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
        """Put a new head on an encoder, or on a new encoder of the architecture.

        The encoder loses its pooler, because the mean replaces it.
        """
        if encoder is None:  # before ``config`` gets the attention kind of this class
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
        """Initialize the head as the architectures of transformers initialize their heads."""
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
            inputs: Other inputs of the encoder.
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
"""Exceptions of model classes for settings that are unknown or missing in config.json."""
_CAUSAL_NAMES = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
_MULTIMODAL_NAMES = modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES


def auto_class(config: PretrainedConfig, head: Head) -> Any:
    """Return the auto class that builds a model with a head.

    Multimodal architectures differ. Some have a class for text only (Qwen3.5). For others,
    `AutoModelForCausalLM` builds the multimodal class (Gemma 3). The rest have only a multimodal
    class (Mistral 3, Qwen2.5-VL). The choice follows `AutoModelForCausalLM` if possible, because
    peft loads the base of an adapter with that class.
    """
    if head.kind == CAUSAL and config.model_type not in _CAUSAL_NAMES:
        return AutoModelForMultimodalLM
    return AUTO_CLASSES[head.kind]


def parts(config: PretrainedConfig) -> list[PretrainedConfig]:
    """Return a configuration and, for a multimodal model, that of its text model."""
    text = config.get_text_config()
    return [config] if text is config else [config, text]


def language_kind(config: PretrainedConfig) -> str:
    """Return the kind of language model of an architecture.

    Raises:
        InputError: The architecture is not a language model.
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
    """Return a description of a head for messages."""
    if head.kind == IMAGE_CLASSIFIER:
        return "classifier of images"
    return f"{head.kind} language model" if head.kind in LANGUAGE_KINDS else head.kind


def configure(config: PretrainedConfig, head: Head) -> None:
    """Write the classes of a classifier into the configuration, which is saved as config.json."""
    if head.kind in LANGUAGE_KINDS:
        return
    padding = padding_id(config) if head.kind == CLASSIFIER else None
    for part in parts(config):
        part.num_labels = head.num_outputs
        if head.kind == CLASSIFIER:
            # A causal classifier answers at a row's last token, which it finds by this padding id.
            part.pad_token_id = padding
        if head.labels:
            part.id2label = dict(enumerate(head.labels))
            part.label2id = {name: number for number, name in enumerate(head.labels)}


def padding_id(config: PretrainedConfig) -> int:
    """Return the id of the padding token, or else of the end-of-text token, or else 0."""
    text = config.get_text_config()
    if text.pad_token_id is not None and text.pad_token_id >= 0:
        return int(text.pad_token_id)
    end = text.eos_token_id
    return int((end[0] if isinstance(end, list) else end) or 0)


@contextmanager
def without_storage() -> Iterator[None]:
    """Create models in the block on the meta device; weights are tied but not initialized."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """Mode that skips initializing meta tensors, which would take most of the creation time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def fresh_model(config: PretrainedConfig, head: Head, pooling: str | None) -> PreTrainedModel:
    """Return a model of the architecture with the head, in float32, with random weights.

    Raises:
        InputError: transformers has no classifier for the architecture, and ``pooling`` is None.
        ValueError: transformers has no such head for the architecture, or cannot build a model with
            these settings.
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
    # An adapter would record this as the address of its base, but random weights have none.
    model.name_or_path = model.config._name_or_path = ""
    return model


def new_parameters(
    config: PretrainedConfig, head: Head, pooling: str | None, *, num_labels: int | None = None
) -> frozenset[str]:
    """Return the names of the model's parameters that the checkpoint does not contain.

    The names depend only on config.json, not on the weights. ``architectures`` names the class that
    the checkpoint was saved from. Without ``architectures``, the checkpoint is assumed to be the
    bare encoder, or the language model itself.

    Args:
        config: Configuration of the model, with ``head`` written into it.
        head: Head that the model needs.
        pooling: As in ``fresh_model``.
        num_labels: Number of classes of the checkpoint's own head. The head of an image classifier
            is new if it needs another number of classes. None: the numbers are equal.
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
            # A parameter is new if its shape differs with the checkpoint's own number of classes.
            theirs = copy.deepcopy(config)
            theirs.num_labels = num_labels
            their_model = fresh_model(theirs, head, pooling)
            shapes = {name: p.shape for name, p in their_model.named_parameters()}
            return frozenset(n for n, p in wanted.named_parameters() if shapes[n] != p.shape)
        saved = saved_class(copy.deepcopy(config))
        loaded, prefix = wanted, ""
        if isinstance(wanted, PooledClassifier):  # the encoder is loaded, and the head is new
            loaded, prefix = cast(PreTrainedModel, wanted.backbone), "backbone."
        # transformers renames weights on saving and loading, so only it knows which are missing.
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
    """Return the class that a checkpoint was saved from; None if it must be the wanted class."""
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
    """Return the folder of the files of ``model.tokenizer``; None if that option is not set.

    Raises:
        InputError: The folder contains no tokenizer.
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
        InputError: The tokenizer cannot be read.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library has no exception class for damaged files
        raise InputError(
            f"model.tokenizer={folder} cannot be read as a tokenizer. Give a folder written by"
            " save_pretrained.",
            key="model.tokenizer",
            value=str(folder),
        ) from error
    return tokenizer


DROPOUT = "drop"
"""Substring of the names of all dropout rates: dropout_rate, hidden_dropout_prob, resid_pdrop,
attn_pdrop."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as described by its config.json, without weights or tokenizer."""

    model: ModelConfig
    """Location of the model, and how to load it."""
    read: PretrainedConfig
    """Configuration that was read; ``config`` returns copies."""

    def config(self, head: Head | None = None) -> PretrainedConfig:
        """Return a copy of the configuration, which includes the head if one is given."""
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
        """Pooling of a classification head, as configured or else as in the checkpoint.

        The mean is used for a multimodal model if transformers has no text classifier for it.
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
        """Number of tokens for which the model has an embedding row."""
        return int(self.read.get_text_config().vocab_size)


def read_architecture(model: ModelConfig) -> Architecture:
    """Return the architecture of a model from its config.json, without its weights.

    A tokenizer that ``model.tokenizer`` names is read as well.

    Raises:
        InputError: The configuration cannot be found, reached or understood; or the checkpoint is
            quantized, or names its own weight file.
    """
    if model.folder is not None:
        check_folder(model, model.folder)
    key, value = address(model)
    with loading_errors(model):
        read = _read(model)
        read.get_text_config()  # fails for a model with several text models
    if getattr(read, "quantization_config", None) is not None:
        raise InputError(
            f"{origin(model)} is already quantized in a format that dpft may not clip exactly. Give"
            " its 16-bit or 32-bit checkpoint, with model.quantization=nf4 or int8.",
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
        # The size and the special tokens of the run's tokenizer replace those of the model.
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
    """Return whether a folder of sentence-transformers configures mean pooling."""
    file = None if folder is None else folder / "1_Pooling" / "config.json"
    if file is None or not file.is_file():
        return False
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")).get("pooling_mode_mean_tokens"))
    except (OSError, ValueError, AttributeError):
        return False


def _read(model: ModelConfig) -> PretrainedConfig:
    """Return a model's configuration, or that of ``model.architecture`` if it is unreachable."""
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
    """Return the configuration that ``model.architecture`` specifies."""
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
"""Architectures whose position ids start at the id of the padding token plus 1."""


def takes_position_ids(model: PreTrainedModel) -> bool:
    """Return whether the model needs position ids, with 0 for the first token of a row.

    The result is False for a model without position ids (T5), and for a model that counts from its
    padding token's id (RoBERTa). Such a model creates its own position ids, one row per example.
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
    """Return whether the model learned token types, which distinguish two sentences (BERT).

    Not every model accepts the token types of a generic tokenizer. GPT-2 would add word embeddings
    for them.
    """
    return (getattr(config.get_text_config(), "type_vocab_size", None) or 0) > 1


def max_positions(config: PretrainedConfig) -> int | None:
    """Return the maximum number of tokens of an input; None: no limit (relative positions)."""
    text = config.get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    if positions is None or getattr(text, "position_biased_input", True) is False:
        return None
    # Beyond the original number of positions, a longrope text changes the rotary positions of its
    # whole batch.
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    # Rotary settings exist once for each layer type, or only once.
    settings = [parameters, *(inner for inner in parameters.values() if isinstance(inner, dict))]
    ropes = [rope for rope in settings if rope.get("rope_type") == "longrope"]
    positions = min([positions, *(rope["original_max_position_embeddings"] for rope in ropes)])
    # RoBERTa counts positions from the id of its padding token.
    offset = text.pad_token_id + 1 if text.model_type in COUNTS_FROM_PADDING else 0
    return positions - offset
