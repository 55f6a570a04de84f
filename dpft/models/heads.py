"""Model heads: the class of transformers for each kind, and which of its weights are new.

A head that the checkpoint's own architecture lacks starts at random. It is part of the task, and is
counted apart: ``new_parameters`` of privacy.json (docs/design.md, the run's folder).
`PooledClassifier` reads the mean over a text's tokens, for sentence encoders (Reimers and Gurevych
2019, arXiv 1908.10084), which carry a text's meaning there and have no trained pooler: the classes
of transformers read the first token.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto import modeling_auto

from dpft.errors import InputError
from dpft.kinds import CAUSAL, CLASSIFIER, IMAGE_CLASSIFIER, LANGUAGE_KINDS, MASKED, SEQ2SEQ, Head


class PooledClassifier(PreTrainedModel):
    """An encoder, the mean of its last layer over the tokens, dropout, and one linear layer."""

    config_class = PretrainedConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def __init__(self, config: PretrainedConfig, encoder: PreTrainedModel | None = None) -> None:
        """Puts a fresh head on an encoder, or on a fresh one of the architecture.

        The encoder loses its pooler: the mean takes its place.
        """
        super().__init__(config)
        made: Any = AutoModel
        self.backbone: nn.Module = (
            made.from_config(config, dtype=torch.float32) if encoder is None else encoder
        )
        if "pooler" in self.backbone._modules:
            self.backbone.pooler = None
        self.dropout = nn.Dropout(float(getattr(config, "hidden_dropout_prob", 0.0)))
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 1))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initializes the head, as the architectures of transformers do theirs."""
        if module is self.classifier:
            nn.init.normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any
    ) -> SequenceClassifierOutput:
        """Returns logits of shape (b, k).

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


def language_kind(config: PretrainedConfig) -> str:
    """Returns which kind of language model an architecture is.

    Raises:
        InputError: It is none.
    """
    if config.is_encoder_decoder:
        return SEQ2SEQ
    if config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return MASKED
    if config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return CAUSAL
    raise InputError(
        f"the model must be a causal, masked or seq2seq language model, got model type"
        f" {config.model_type}; choose another model."
    )


def describe(head: Head) -> str:
    """Returns a head in words, for messages."""
    if head.kind == IMAGE_CLASSIFIER:
        return "classifier of images"
    return f"{head.kind} language model" if head.kind in LANGUAGE_KINDS else head.kind


def configure(config: PretrainedConfig, head: Head) -> None:
    """Writes a classifier's classes into the architecture, where config.json will carry them."""
    if head.kind in LANGUAGE_KINDS:
        return
    config.num_labels = head.num_outputs
    if head.kind == CLASSIFIER:
        # A causal classifier answers at a row's last token, known from padding by this id.
        config.pad_token_id = padding_id(config)
    if head.labels:
        config.id2label = dict(enumerate(head.labels))
        config.label2id = {name: number for number, name in enumerate(head.labels)}


def padding_id(config: PretrainedConfig) -> int:
    """Returns the token that fills rows up: padding, end-of-text without it, 0 without both."""
    pad = config.pad_token_id
    if pad is not None and pad >= 0:
        return int(pad)
    end = config.eos_token_id
    return int((end[0] if isinstance(end, list) else end) or 0)


@contextmanager
def without_storage() -> Iterator[None]:
    """Has models made inside be of shapes alone; they are tied, and nothing is drawn for them."""
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
    """Returns a model of the architecture with that head, in float32, at random weights.

    Raises:
        ValueError: transformers has no such head for the architecture.
    """
    model: PreTrainedModel
    if head.kind == CLASSIFIER and pooling is not None:
        model = PooledClassifier(config)
    else:
        model = AUTO_CLASSES[head.kind].from_config(config, dtype=torch.float32)
    # Its weights have no address, though its configuration has one: an adapter would name it.
    model.name_or_path = model.config._name_or_path = ""
    return model


def new_parameters(
    config: PretrainedConfig, head: Head, pooling: str | None, *, num_labels: int | None = None
) -> frozenset[str]:
    """Returns the names of what the model has and the checkpoint's own architecture lacks.

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
        known = _checkpoint_class(config, head)
        if known is None or (isinstance(wanted, known) and head.kind != IMAGE_CLASSIFIER):
            return frozenset()
        if isinstance(wanted, known):
            if num_labels is None:
                return frozenset()
            return _of_other_shape(wanted, config, head, pooling, num_labels)
        own = set(_bare_names(known(config)).values())
    return frozenset(name for name, bare in _bare_names(wanted).items() if bare not in own)


def _of_other_shape(
    wanted: PreTrainedModel,
    config: PretrainedConfig,
    head: Head,
    pooling: str | None,
    num_labels: int,
) -> frozenset[str]:
    """Returns the names of what has another shape with the checkpoint's own number of classes."""
    theirs = copy.deepcopy(config)
    theirs.num_labels = num_labels
    shapes = {name: p.shape for name, p in fresh_model(theirs, head, pooling).named_parameters()}
    return frozenset(name for name, p in wanted.named_parameters() if shapes[name] != p.shape)


def _checkpoint_class(config: PretrainedConfig, head: Head) -> Any:
    """Returns the class a checkpoint was saved from; None where it must be the wanted one."""
    for name in config.architectures or ():
        if name == PooledClassifier.__name__:
            return PooledClassifier
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    if head.kind in (CAUSAL, SEQ2SEQ):
        return None
    return type(AutoModel.from_config(config))


def _bare_names(model: PreTrainedModel) -> dict[str, str]:
    """Returns each parameter's name, and what it is called in the bare encoder."""
    prefix = f"{model.base_model_prefix}."
    return {name: name.removeprefix(prefix) for name, _ in model.named_parameters()}
