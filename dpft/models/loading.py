"""Models and tokenizers from the hub, a folder or the package, in float32.

Parameters are float32 whatever the checkpoint's precision (speed comes from autocast).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dpft.errors import InputError
from dpft.kinds import CAUSAL, CLASSIFIER, LANGUAGE_KINDS, MASKED, SEQ2SEQ, Head
from dpft.models.heads import (
    AUTO_CLASSES,
    configure,
    describe,
    fresh_model,
    language_kind,
    new_parameters,
)
from dpft.models.pooling import MEAN, PooledClassifier
from dpft.models.source import (
    ModelConfig,
    check_folder,
    check_tokenizer_files,
    check_weight_files,
    loading_errors,
    origin,
    source,
)

CAUSAL_HEAD = Head(kind=CAUSAL)


def load_config(config: ModelConfig) -> PretrainedConfig:
    """Returns the architecture, from config.json alone.

    Raises:
        InputError: It cannot be found, reached or understood.
    """
    if config.folder is not None:
        check_folder(config, config.folder)
    with loading_errors(config):
        architecture: PretrainedConfig = AutoConfig.from_pretrained(**source(config))
    return architecture


def language_head(config: ModelConfig) -> Head:
    """Returns the model's own language-model head.

    Raises:
        InputError: As ``load_config``, or the architecture is no language model.
    """
    return Head(kind=language_kind(load_config(config)))


def meta_model(config: ModelConfig, head: Head = CAUSAL_HEAD) -> PreTrainedModel:
    """Returns the model without storage, to count parameters; reads config.json alone.

    Raises:
        InputError: As ``load_config``, or the architecture has no such head.
    """
    architecture = load_config(config)
    configure(architecture, head)
    with loading_errors(config, describe(head)), torch.device("meta"):
        return fresh_model(architecture, head, _pooling(config, architecture))


def new_names(config: ModelConfig, head: Head = CAUSAL_HEAD) -> frozenset[str]:
    """Returns the names of the parameters that the checkpoint's own architecture lacks.

    Raises:
        InputError: As ``meta_model``, or a pre-trained model lacks the language-model head that
            its task asks.
    """
    architecture = load_config(config)
    configure(architecture, head)
    with loading_errors(config, describe(head)):
        new = new_parameters(architecture, head, _pooling(config, architecture))
    if new and head.kind in LANGUAGE_KINDS and config.init == "pretrained":
        raise InputError(
            f"{origin(config)} has no trained head of a {head.kind} language model"
            f" (its checkpoint has no {min(new)});"
            " choose a model that has, or a classification head with task.objective=cls."
        )
    return new


def load_model(config: ModelConfig, *, seed: int, head: Head = CAUSAL_HEAD) -> PreTrainedModel:
    """Returns the model on the CPU in float32; the caller sets train or eval mode.

    Args:
        config: Which model.
        seed: Seeds a random initialisation, of the whole model or of a new head; the global
            generator is left as it was.
        head: What it shall answer with.

    Raises:
        InputError: Configuration or weights cannot be found, reached or understood.
    """
    architecture = load_config(config)
    configure(architecture, head)
    pooling = _pooling(config, architecture)
    new = new_names(config, head)
    with loading_errors(config, describe(head)), seeded(seed):
        if config.init == "random":
            model = fresh_model(architecture, head, pooling)
        else:
            model = _pretrained(config, architecture, head, pooling, new)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    return model


def load_tokenizer(
    config: ModelConfig,
    *,
    kind: str = CAUSAL,
    architecture: PretrainedConfig | None = None,
    added: Sequence[str] = (),
) -> PreTrainedTokenizerBase:
    """Returns the model's tokenizer; padding is the end-of-text token where it has none.

    Args:
        config: Which model.
        kind: Kind of model it is used with; one that writes needs an end-of-text token.
        architecture: Of the model it belongs to; None reads it where the tokenizer is.
        added: Tokens that it may have beyond the model's vocabulary, which will be given them.

    Raises:
        InputError: It cannot be found or reached, lacks an end-of-text token, or is larger than
            the model's vocabulary.
    """
    architecture = load_config(config) if architecture is None else architecture
    if config.folder is not None:
        check_tokenizer_files(config, config.folder)
    with loading_errors(config):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**source(config))
    _check_tokenizer(config, tokenizer, architecture, kind, added)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _pooling(config: ModelConfig, architecture: PretrainedConfig) -> str | None:
    """Returns how a head pools: what the configuration says, or what the checkpoint is."""
    saved = PooledClassifier.__name__ in (architecture.architectures or ())
    return MEAN if config.pooling is None and saved else config.pooling


def _pretrained(
    config: ModelConfig,
    architecture: PretrainedConfig,
    head: Head,
    pooling: str | None,
    new: frozenset[str],
) -> PreTrainedModel:
    if config.folder is not None:
        check_weight_files(config, config.folder)
    loaded_class: Any = AUTO_CLASSES[head.kind]
    pooled = head.kind == CLASSIFIER and pooling is not None
    if pooled:
        saved = PooledClassifier.__name__ in (architecture.architectures or ())
        loaded_class = PooledClassifier if saved else AutoModel
    loaded: Any = loaded_class.from_pretrained(
        **source(config),
        config=architecture,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    missing = sorted(set(loaded[1]["missing_keys"]) - new)
    # A pooler that the mean takes the place of may be missing.
    missing = [name for name in missing if not (pooled and name.startswith("pooler."))]
    if missing:
        raise InputError(
            f"{origin(config)} lacks {len(missing)} of the model's weights, the first of them"
            f" {missing[0]}; give a checkpoint of a {head.kind} model, or model.init=random."
        )
    model: PreTrainedModel = loaded[0]
    if config.path is None and config.embedded:
        # a place inside this installation is no address for anybody else
        model.name_or_path = model.config._name_or_path = ""
    if pooled and not isinstance(model, PooledClassifier):
        return PooledClassifier(architecture, model)
    return model


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds initialisation, which happens on the CPU, and restores its generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed: it would seed CUDA's global generator too, and leave it so
        torch.default_generator.manual_seed(seed)
        yield


def _check_tokenizer(
    config: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    architecture: PretrainedConfig,
    kind: str,
    added: Sequence[str],
) -> None:
    writes = kind in (CAUSAL, SEQ2SEQ)
    if kind == MASKED and tokenizer.mask_token_id is None:
        raise InputError(f"The tokenizer of {origin(config)} has no mask token; give it one.")
    if tokenizer.eos_token_id is None and (writes or tokenizer.pad_token_id is None):
        raise InputError(
            f"The tokenizer of {origin(config)} has no end-of-text token; give it an eos_token."
        )
    rows = architecture.get_text_config().vocab_size
    own = len(tokenizer) - len(tokenizer.get_vocab().keys() & set(added))
    if own > rows:
        raise InputError(
            f"The tokenizer of {origin(config)} has {own} tokens where the model has"
            f" {rows}; give the tokenizer that belongs to the model."
        )
