"""Loading of models and tokenizers from the Hub or a folder, with the tokens that a task adds.

Parameters are loaded in float32, whatever the precision of the checkpoint; autocast makes training
faster. The row of a token that a task adds is the mean of the rows of the tokens in its name
("speaker1" for ``<speaker1>``). The row depends only on the checkpoint, so no record is read for
it.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

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
from dpft.independence_check import check_model, fix_rotary_scale
from dpft.models.architecture import (
    Architecture,
    PooledClassifier,
    auto_class,
    describe,
    fresh_model,
    language_kind,
    load_own_tokenizer,
    new_parameters,
    own_tokenizer_folder,
    without_storage,
)
from dpft.models.batch_norm import replace_batch_norm, standardize_weights
from dpft.models.checkpoint_rows import CheckpointRows, NotInShards
from dpft.models.source import (
    ModelConfig,
    address,
    check_tokenizer_files,
    check_weight_files,
    loading_errors,
    origin,
    source,
)
from dpft.non_text_modules import idle_modules, is_inside, is_multimodal

STATISTICS = (".running_mean", ".running_var", ".num_batches_tracked")
"""Endings of the names of a BatchNorm's running statistics."""

CAUSAL_HEAD = Head(kind=CAUSAL)


def language_head(architecture: Architecture) -> Head:
    """Return the model's own language-model head.

    Raises:
        InputError: The architecture is not a language model, or has no tokenizer.
    """
    model, kind = architecture.model, language_kind(architecture.config())
    if model.has_no_weights and model.tokenizer is None:
        raise InputError(
            f"model={model.name} has no tokenizer. Set model.tokenizer to the folder of a dpft"
            " tokenizer run, or of any tokenizer.",
            key="model.tokenizer",
            hint="model.tokenizer=RUN",
        )
    return Head(kind=kind)


def meta_model(architecture: Architecture, head: Head = CAUSAL_HEAD) -> PreTrainedModel:
    """Return the model without storage, to count parameters; needs only config.json.

    Raises:
        InputError: The architecture has no such head.
    """
    config = architecture.config(head)
    with loading_errors(architecture.model, describe(head)), without_storage():
        model = fresh_model(config, head, architecture.pooling)
    if architecture.model.is_quantized:
        model = _quantization(architecture.model).plan_quantized(
            model, architecture.model.quantization
        )
    return _changed(model, architecture.model)


def new_names(architecture: Architecture, head: Head = CAUSAL_HEAD) -> frozenset[str]:
    """Return the names of the parameters that the checkpoint's own architecture lacks.

    Raises:
        InputError: As in ``meta_model``, or a pre-trained model lacks the language-model head that
            its task needs.
    """
    model = architecture.model
    key, value = address(model)
    with loading_errors(model, describe(head)):
        new = new_parameters(
            architecture.config(head),
            head,
            architecture.pooling,
            num_labels=architecture.read.num_labels,
        )
    if head.kind != IMAGE_CLASSIFIER:
        _check_reads_texts(architecture)
    if new and head.kind in LANGUAGE_KINDS and model.init == "pretrained":
        raise InputError(
            f"{origin(model)} has no trained head of a {head.kind} language model (its checkpoint"
            f" has no {min(new)}). Choose a model with such a head, or train a classifier.",
            key=key,
            value=value,
            hint="task.objective=cls",
        )
    return new


def _check_reads_texts(architecture: Architecture) -> None:
    """Check that a multimodal model can be trained on texts without images.

    Raises:
        InputError: The model needs an image, or has a trainable layer that texts do not reach.
    """
    config, model = architecture.config(), architecture.model
    key, value = address(model)
    if not is_multimodal(config) or (kind := language_kind(config)) == MASKED:
        return
    if kind == SEQ2SEQ:
        raise InputError(
            f"{origin(model)} reads images in its encoder, which is not supported for model type"
            f" {config.model_type}. Choose another model.",
            key=key,
            value=value,
        )
    with loading_errors(model, describe(CAUSAL_HEAD)), without_storage():
        shape = fresh_model(config, CAUSAL_HEAD, None)
    tokens = torch.zeros(1, 2, dtype=torch.long, device="meta")
    try:
        shape(input_ids=tokens).logits.sum().backward()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{origin(model)} must read texts without images, but {type(shape).__name__} does not"
            f" ({str(error).splitlines()[0].rstrip('.')}). Choose another model.",
            key=key,
            value=value,
        ) from error
    except (NotImplementedError, RuntimeError):  # left to the self-check
        return
    idle = idle_modules(shape)
    unreached = (name for name, p in shape.named_parameters() if p.grad is None)
    noisy = next((name for name in unreached if not is_inside(name, idle)), None)
    if noisy is not None:
        raise InputError(
            f"{origin(model)} has layers that process only images or audio, such as {noisy}, and"
            " texts would train them only on noise. Choose another model.",
            key=key,
            value=value,
        )


def load_model(
    architecture: Architecture,
    *,
    seed: int,
    head: Head = CAUSAL_HEAD,
    rows: CheckpointRows | None = None,
) -> PreTrainedModel:
    """Return the model on the CPU in float32; the caller sets train or eval mode.

    Args:
        architecture: Architecture of the model.
        seed: Seed of a random initialization, of the whole model or of a new head. The state of the
            global generator is restored.
        head: Head that the model needs.
        rows: Stand-ins for the checkpoint's weights, whose rows are read later; None reads the
            weights.

    Raises:
        InputError: The weights cannot be found, reached or understood.
    """
    new = new_names(architecture, head)
    with loading_errors(architecture.model, describe(head)), seeded(seed):
        if architecture.model.init == "random":
            model = fresh_model(architecture.config(head), head, architecture.pooling)
        else:
            model = _pretrained(architecture, head, new, rows)
    model = _changed(model, architecture.model)
    if architecture.model.gradient_checkpointing:
        checkpoint_activations(model)
    return model


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute the activations of blocks in the backward pass instead of storing them."""
    # Older versions of transformers that dpft supports have only the older name.
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})


def load_tokenizer(
    architecture: Architecture, *, kind: str = CAUSAL, added: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer; its padding token defaults to the end-of-text token.

    Args:
        architecture: Architecture of the model; its ``model`` gives the location of the tokenizer.
        kind: Kind of model for the tokenizer; a model that generates needs an end-of-text token.
        added: Tokens that the tokenizer may have beyond the model's vocabulary, because the model
            will get rows for them.

    Raises:
        InputError: The tokenizer cannot be found or reached, lacks an end-of-text or mask token
            that it needs, or is larger than the model's vocabulary.
    """
    tokenizer = _tokenizer_of(architecture.model)
    place, rows = origin(architecture.model), architecture.vocabulary_size
    key, value = address(architecture.model)
    if _own_size(tokenizer, added) > rows and tokenizer.is_fast:
        # AutoTokenizer used the class of the architecture (Qwen3.5), which adds special tokens that
        # the files do not have. The generic class adds no tokens.
        tokenizer = _tokenizer_of(architecture.model, PreTrainedTokenizerFast)
    writes = kind in (CAUSAL, SEQ2SEQ)
    if kind == MASKED and tokenizer.mask_token_id is None:
        raise InputError(
            f"The tokenizer of {place} has no mask token. Set its mask_token.", key=key, value=value
        )
    if tokenizer.eos_token_id is None and (writes or tokenizer.pad_token_id is None):
        raise InputError(
            f"The tokenizer of {place} has no end-of-text token. Set its eos_token.",
            key=key,
            value=value,
        )
    if _own_size(tokenizer, added) > rows and tokenizer.is_fast:
        _remove_tokens_without_row(tokenizer, rows)
    size = _own_size(tokenizer, added)
    if size > rows:
        raise InputError(
            f"The tokenizer of {place} has {size} tokens, but the model has {rows}. Give the"
            " tokenizer that belongs to the model.",
            key=key,
            value=value,
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _remove_tokens_without_row(tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Remove special tokens that have no embedding row, so that no text is read as such a token.

    Gemma 3 1B is published with the tokenizer of its multimodal siblings, whose last token
    represents an image. Tokens that every tokenizer has, such as padding, stay.
    """
    names = PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
    needed = {getattr(tokenizer, name) for name in names}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["added_tokens"] = [
        token
        for token in content["added_tokens"]
        if token["id"] < rows or not token["special"] or token["content"] in needed
    ]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))


def _own_size(tokenizer: PreTrainedTokenizerBase, added: Sequence[str]) -> int:
    """Return the number of tokens of the tokenizer that no task added."""
    return len(tokenizer) - len(tokenizer.get_vocab().keys() & set(added))


def _tokenizer_of(model: ModelConfig, kind: Any = AutoTokenizer) -> PreTrainedTokenizerBase:
    folder = own_tokenizer_folder(model)
    if folder is not None:
        return load_own_tokenizer(folder)
    if model.folder is not None:
        check_tokenizer_files(model, model.folder)
    with loading_errors(model):
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(**source(model))
    return tokenizer


def _changed(model: PreTrainedModel, settings: ModelConfig) -> PreTrainedModel:
    """Replace layers of a model as its configuration requires, and return the model."""
    fix_rotary_scale(model)
    if settings.replace_batch_norm and not replace_batch_norm(model):
        raise InputError(
            f"model.replace_batch_norm=true needs a model with BatchNorm, but {origin(settings)}"
            " has none.",
            key="model.replace_batch_norm",
            value=True,
            hint="model.replace_batch_norm=false",
        )
    if settings.standardize_weights and not standardize_weights(model):
        raise InputError(
            f"model.standardize_weights=true needs a model with convolutions, but"
            f" {origin(settings)} has none.",
            key="model.standardize_weights",
            value=True,
            hint="model.standardize_weights=false",
        )
    return model


def _pretrained(
    architecture: Architecture, head: Head, new: frozenset[str], rows: CheckpointRows | None = None
) -> PreTrainedModel:
    """Return the model with its checkpoint's weights; only those in ``new`` may be missing."""
    settings = architecture.model
    if settings.folder is not None:
        check_weight_files(settings, settings.folder)
    config = architecture.config(head)
    quantized: dict[str, Any] = {}
    if settings.is_quantized:
        quantized["quantization_config"] = _quantization(settings).bits_config(
            settings.quantization
        )
        quantized["device_map"] = {"": "cpu"}  # so that the result is the same for every device
    loaded_class: Any = auto_class(config, head)
    pooled = head.kind == CLASSIFIER and architecture.pooling is not None
    if pooled:
        loaded_class = PooledClassifier if architecture.is_pooled else AutoModel
    if rows is None:
        loaded: Any = loaded_class.from_pretrained(
            **source(settings),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            # the head of an image classifier is new if its classes differ
            ignore_mismatched_sizes=head.kind == IMAGE_CLASSIFIER,
            **quantized,
        )
    else:
        shape = meta_model(architecture, head)
        loaded = _with_stand_ins(settings, type(shape), shape.config, rows)
    others = loaded[1].get("mismatched_keys", ())
    mismatched = [key if isinstance(key, str) else key[0] for key in others]
    missing = sorted({*loaded[1]["missing_keys"], *mismatched} - new)
    if settings.replace_batch_norm:  # a checkpoint saved after the replacement has no statistics
        missing = [name for name in missing if not name.endswith(STATISTICS)]
    # The mean replaces the pooler, so the pooler may be missing.
    missing = [name for name in missing if not (pooled and name.startswith("pooler."))]
    if missing:
        key, value = address(settings)
        raise InputError(
            f"{origin(settings)} lacks {len(missing)} of the model's weights, the first of them"
            f" {missing[0]}. Give a checkpoint of a {head.kind} model, or train from random"
            " weights.",
            key=key,
            value=value,
            hint="model.init=random",
        )
    model: PreTrainedModel = loaded[0]
    if settings.is_quantized and not _quantization(settings).freeze_arithmetic(model):
        raise InputError(
            f"model.quantization={settings.quantization} needs a model with linear layers, but"
            f" {origin(settings)} has none.",
            key="model.quantization",
            value=settings.quantization,
            hint="model.quantization=none",
        )
    if settings.is_no_address:
        model.name_or_path = model.config._name_or_path = ""
    if pooled and not isinstance(model, PooledClassifier):
        return PooledClassifier(config, model)
    return model


def _quantization(settings: ModelConfig) -> Any:
    """Return the module for quantization, whose library is an extra.

    Raises:
        InputError: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise InputError(
            f"model.quantization={settings.quantization} needs bitsandbytes, which is not"
            " installed.",
            key="model.quantization",
            value=settings.quantization,
            hint="pip install 'dpft[quantization]'",
        )
    return import_module("dpft.models.quantization")


def dequantize(model: PreTrainedModel, settings: ModelConfig) -> PreTrainedModel:
    """Return a quantized model with float32 weights of the same values.

    Args:
        model: Model that ``load_model`` returned; do not use it afterwards.
        settings: Configuration of the model.
    """
    plain: PreTrainedModel = _quantization(settings).dequantized(model)
    return plain


def _with_stand_ins(
    settings: ModelConfig, model_class: Any, config: PretrainedConfig, rows: CheckpointRows
) -> Any:
    """Return model and loading info as ``from_pretrained`` does, with stand-ins as weights."""
    if model_class is PooledClassifier:
        raise NotInShards("dpft added its classification head")
    place = source(settings)
    name = place["pretrained_model_name_or_path"]
    config.name_or_path = name
    model, info = model_class.from_pretrained(
        None, config=config, state_dict=rows.state(), dtype=torch.float32, output_loading_info=True
    )
    model.name_or_path = model.config._name_or_path = name
    if model.can_generate():
        # These are the settings that ``from_pretrained`` reads from a checkpoint.
        where = {key: value for key, value in place.items() if key != "trust_remote_code"}
        path = where.pop("pretrained_model_name_or_path")
        try:
            generation_config = GenerationConfig.from_pretrained(path, **where)
        except OSError:
            of_model: dict[str, Any] = {
                "config_file_name": "config.json",
                "_from_model_config": True,
            }
            generation_config = GenerationConfig.from_pretrained(path, **of_model, **where)
        model.generation_config = generation_config
    return model, info


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generator, which draws initial weights, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed CUDA's global generator and not restore it.
        torch.default_generator.manual_seed(seed)
        yield


def quiet_transformers() -> None:
    """Keep progress bars and notes of transformers off stderr; dpft prints its own."""
    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft imports it if installed


def load_with_tokens(
    architecture: Architecture,
    head: Head,
    tokens: Sequence[str],
    *,
    seed: int,
    rows: CheckpointRows | None = None,
) -> PreTrainedModel:
    """Return a model on the CPU, with an embedding row for each of the given tokens.

    A token that the model's own tokenizer knows already has a row and keeps it.

    Raises:
        InputError: The model cannot be found or understood, or mixes examples.
    """
    loaded = load_model(architecture, seed=seed, head=head, rows=rows)
    check_model(loaded, as_it_trains=True)
    if tokens:
        start_rows(loaded, add_tokens(load_tokenizer(architecture, kind=head.kind), tokens))
    return loaded


def grow_as_planned(
    loaded: PreTrainedModel, architecture: Architecture, head: Head, tokens: Sequence[str]
) -> None:
    """Give a model as many embedding rows as ``load_with_tokens`` would, with arbitrary values.

    A plan needs only config.json. Without a tokenizer, each row of the vocabulary is assumed to
    belong to a token.
    """
    if not tokens:
        return
    try:
        tokenizer = load_tokenizer(architecture, kind=head.kind)
    except InputError:
        grow(loaded, architecture.vocabulary_size + len(tokens))
        return
    add_tokens(tokenizer, tokens)
    grow(loaded, len(tokenizer))


def known_tokens(
    task: str, tokens: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    """Return a task's tokens after checking that the tokenizer has them.

    Raises:
        InputError: The tokenizer lacks a token, for example because its run had another task.
    """
    missing = [token for token in tokens if token not in tokenizer.get_vocab()]
    if missing:
        raise InputError(
            f"task={task} needs a tokenizer with {missing[0]}, which training adds, but this"
            " tokenizer has none. Give a run of this task.",
            key="task",
            value=task,
        )
    return tuple(tokens)


def add_tokens(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]
) -> dict[int, tuple[int, ...]]:
    """Add the tokens that the tokenizer lacks, as special tokens.

    Returns:
        Id of each new token, with the ids of the tokens in its name. Names that the tokenizer
        cannot distinguish, because it does not know them, have the same ids.
    """
    vocabulary = tokenizer.get_vocab()
    new = [token for token in tokens if token not in vocabulary]
    pieces = [
        tokenizer(token.strip("<>"), add_special_tokens=False, split_special_tokens=True)
        for token in new
    ]
    extra = cast(Any, {"extra_special_tokens": new})
    tokenizer.add_special_tokens(extra, replace_extra_special_tokens=False)
    numbers = cast(list[int], tokenizer.convert_tokens_to_ids(new))
    return {n: tuple(read["input_ids"]) for n, read in zip(numbers, pieces, strict=True)}


def grow(model: PreTrainedModel, rows: int) -> None:
    """Give a model embeddings for at least ``rows`` tokens; the vocabulary never shrinks.

    Tied weights stay tied. A new row is undefined until ``start_rows``.
    """
    if rows <= len(cast(Tensor, model.get_input_embeddings().weight)):
        return
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(rows, mean_resizing=False)


@torch.no_grad()
def start_rows(model: PreTrainedModel, pieces: Mapping[int, Sequence[int]]) -> None:
    """Give each token its own row in the embedding, and in the head if it is not tied.

    If a padded vocabulary already has the row, that row is used.

    Args:
        model: Model that is changed in place.
        pieces: Id of each token, with the ids of the tokens in its name.
    """
    if not pieces:
        return
    grow(model, max(pieces) + 1)
    head: Any = model.get_output_embeddings()
    tables = [cast(Tensor, model.get_input_embeddings().weight)]
    if head is not None:
        tables += [table for table in (head.weight, head.bias) if table is not None]
    for table in tables:
        means = {number: table[list(read)].mean(dim=0) for number, read in pieces.items() if read}
        for number, mean in means.items():
            table[number] = mean
