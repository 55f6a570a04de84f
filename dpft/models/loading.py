"""Load models and tokenizers from the hub or a folder, and add a task's tokens to them.

Parameters are float32 whatever the checkpoint's precision (speed comes from autocast). The row of a
token that a task adds is the mean of the rows of the tokens that its name reads as ("speaker1" for
``<speaker1>``), so it follows from the checkpoint alone: no record is read for it.
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
"""Names of what a BatchNorm knows of its batches, as they end."""

CAUSAL_HEAD = Head(kind=CAUSAL)


def language_head(architecture: Architecture) -> Head:
    """Return the model's own language-model head.

    Raises:
        InputError: The architecture is no language model, or there is no tokenizer for it.
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
    """Return the model without storage, to count parameters; needs no more than config.json.

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
        InputError: As ``meta_model``, or a pre-trained model lacks the language-model head that
            its task asks.
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
            f" has no {min(new)}). Choose a model that has, or a classification head.",
            key=key,
            value=value,
            hint="task.objective=cls",
        )
    return new


def _check_reads_texts(architecture: Architecture) -> None:
    """Check that a multimodal model reads a text without an image, and trains on it.

    Raises:
        InputError: It needs an image, or only an image reaches a layer that would train.
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
    except (NotImplementedError, RuntimeError):  # an operation needs values: the self-check decides
        return
    idle = idle_modules(shape)
    unreached = (name for name, p in shape.named_parameters() if p.grad is None)
    noisy = next((name for name in unreached if not is_inside(name, idle)), None)
    if noisy is not None:
        raise InputError(
            f"{origin(model)} has layers that only images or sounds reach, such as {noisy}, so that"
            " they would train on noise. Choose another model.",
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
        architecture: Of the model.
        seed: Seeds a random initialization, of the whole model or of a new head; the global
            generator is left as it was.
        head: What it shall answer with.
        rows: Of the checkpoint, whose stand-ins take the place of its weights; None: they are read.

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
    """Have blocks compute their activations again in the backward pass, and not keep them."""
    # Older versions of transformers that are supported have the older name alone.
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})


def load_tokenizer(
    architecture: Architecture, *, kind: str = CAUSAL, added: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer; its padding token defaults to the end-of-text token.

    Args:
        architecture: Of the model; its ``model`` says where the tokenizer is.
        kind: Kind of model it is used with; one that writes needs an end-of-text token.
        added: Tokens that it may have beyond the model's vocabulary, which will be given them.

    Raises:
        InputError: It cannot be found or reached, lacks an end-of-text token, or is larger than
            the model's vocabulary.
    """
    tokenizer = _tokenizer_of(architecture.model)
    place, rows = origin(architecture.model), architecture.vocabulary_size
    key, value = address(architecture.model)
    if _own_size(tokenizer, added) > rows and tokenizer.is_fast:
        # AutoTokenizer took the class of the architecture (Qwen3.5), which adds special tokens
        # that the files do not have; the generic class adds none.
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
    """Remove special tokens for which the model has no row, so that no text is read as one.

    Gemma 3 1B is published with the tokenizer of its multimodal siblings, whose last token stands
    for an image. Tokens that every tokenizer has, such as padding, stay.
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
    """Return the number of tokens that a task did not add."""
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
    """Return the model with what the configuration puts in the place of some of its layers."""
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
        quantized["device_map"] = {"": "cpu"}  # where bits are the same for every device
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
            # of an image classifier's own head, which is new where its classes are others
            ignore_mismatched_sizes=head.kind == IMAGE_CLASSIFIER,
            **quantized,
        )
    else:
        shape = meta_model(architecture, head)
        loaded = _with_stand_ins(settings, type(shape), shape.config, rows)
    others = loaded[1].get("mismatched_keys", ())
    mismatched = [key if isinstance(key, str) else key[0] for key in others]
    missing = sorted({*loaded[1]["missing_keys"], *mismatched} - new)
    if settings.replace_batch_norm:  # of a model that was saved after it, which has no statistics
        missing = [name for name in missing if not name.endswith(STATISTICS)]
    # A pooler that the mean takes the place of may be missing.
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
    """Return the module that knows of bits, whose library is an extra.

    Raises:
        InputError: It is not installed.
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
    """Return a quantized model with float32 weights of the values that it computes with.

    Args:
        model: As ``load_model`` returned it; it is used up.
        settings: Of the model.
    """
    plain: PreTrainedModel = _quantization(settings).dequantized(model)
    return plain


def _with_stand_ins(
    settings: ModelConfig, model_class: Any, config: PretrainedConfig, rows: CheckpointRows
) -> Any:
    """Return model and loading info as ``from_pretrained`` does, with stand-ins as weights."""
    if model_class is PooledClassifier:
        raise NotInShards("its head was put on it")
    place = source(settings)
    name = place["pretrained_model_name_or_path"]
    config.name_or_path = name
    model, info = model_class.from_pretrained(
        None, config=config, state_dict=rows.state(), dtype=torch.float32, output_loading_info=True
    )
    model.name_or_path = model.config._name_or_path = name
    if model.can_generate():
        # as ``from_pretrained`` takes them from a checkpoint
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
    """Seeds initialization, which happens on the CPU, and restores its generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed: it would seed CUDA's global generator too, and leave it so
        torch.default_generator.manual_seed(seed)
        yield


def quiet_transformers() -> None:
    """Keep progress bars and notes of transformers and its like off stderr; dpft has its own."""
    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft imports it where it is there


def load_with_tokens(
    architecture: Architecture,
    head: Head,
    tokens: Sequence[str],
    *,
    seed: int,
    rows: CheckpointRows | None = None,
) -> PreTrainedModel:
    """Return a model on the CPU, with a row for each of the tokens.

    A token that the model's own tokenizer knows has its row already, and keeps it.

    Raises:
        InputError: It cannot be found or understood, or mixes examples.
    """
    loaded = load_model(architecture, seed=seed, head=head, rows=rows)
    check_model(loaded, as_it_trains=True)
    if tokens:
        start_rows(loaded, add_tokens(load_tokenizer(architecture, kind=head.kind), tokens))
    return loaded


def grow_as_planned(
    loaded: PreTrainedModel, architecture: Architecture, head: Head, tokens: Sequence[str]
) -> None:
    """Give a model as many rows as ``load_with_tokens`` would, of no particular values.

    A plan needs no more than config.json: where there is no tokenizer, each row of the vocabulary
    is taken to be a token's.
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
    """Return a task's tokens, once the tokenizer is known to have them.

    Raises:
        InputError: It lacks one, as that of a run of another task does.
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
    """Make tokens the tokenizer's own, those that it lacks, as special ones.

    Returns:
        The number of each token that is new, and the numbers of those that its name reads as.
        Tokens whose names a tokenizer cannot tell apart, all unknown to it, share theirs.
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
    """Give the vocabulary of a model at least so many rows; it never shrinks.

    Tied weights stay tied, and a row that is new is undefined until ``start_rows``.
    """
    if rows <= len(cast(Tensor, model.get_input_embeddings().weight)):
        return
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(rows, mean_resizing=False)


@torch.no_grad()
def start_rows(model: PreTrainedModel, pieces: Mapping[int, Sequence[int]]) -> None:
    """Give tokens a row of their own, that of the embedding and that of an untied head.

    A row that a padded vocabulary already has is used.
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
