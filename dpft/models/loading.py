"""Models and tokenizers from the hub, a folder or the package, in float32.

Parameters are float32 whatever the checkpoint's precision (speed comes from autocast). Weights are
safetensors: nothing in a checkpoint is unpickled or executed (DESIGN §5, §6.11).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dpft.errors import InputError
from dpft.hub import hub_is_reachable

EMBEDDED_MODEL = Path(__file__).parent / "embedded" / "tiny"
INITS = ("pretrained", "random")
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, ``conf/model/<name>.yaml``; path wins over embedded, embedded over the hub."""

    name: str
    """What reports call it."""
    hub_name: str | None = None
    """Repository on the Hugging Face hub."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    path: str | None = None
    """Local folder written by ``save_pretrained``."""
    embedded: bool = False
    """The small model that ships with dpft."""
    init: str = "pretrained"
    """pretrained, or random to train from a fresh initialisation of the same architecture."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    def __post_init__(self) -> None:
        if self.init not in INITS:
            raise InputError(f"model.init must be one of {', '.join(INITS)}, got {self.init!r}.")
        if self.path is None and not self.embedded and self.hub_name is None:
            raise InputError("model needs model.path, model.hub_name or model.embedded=true.")

    @property
    def folder(self) -> Path | None:
        """The local folder it is read from, or None for the hub."""
        if self.path is not None:
            return Path(self.path).expanduser()
        return EMBEDDED_MODEL if self.embedded else None


def load_config(config: ModelConfig) -> PretrainedConfig:
    """Returns the architecture, from config.json alone.

    Raises:
        InputError: It cannot be found, reached or understood.
    """
    if config.folder is not None:
        _check_folder(config, config.folder)
    with _loading_errors(config):
        architecture: PretrainedConfig = AutoConfig.from_pretrained(**_source(config))
    return architecture


def meta_model(config: ModelConfig) -> PreTrainedModel:
    """Returns the model without storage, to count parameters; reads config.json alone.

    Raises:
        InputError: As ``load_config``, or the architecture is no causal language model.
    """
    architecture = load_config(config)
    with _loading_errors(config), torch.device("meta"):
        return _fresh(architecture)


def load_model(config: ModelConfig, *, seed: int) -> PreTrainedModel:
    """Returns the model on the CPU in float32; the caller sets train or eval mode.

    Args:
        config: Which model.
        seed: Seeds a random initialisation; the global generator is left as it was.

    Raises:
        InputError: Configuration or weights cannot be found, reached or understood.
    """
    architecture = load_config(config)
    with _loading_errors(config), _seeded(seed):
        random = config.init == "random"
        model = _fresh(architecture) if random else _pretrained(config, architecture)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    return model


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Returns the model's tokenizer; padding is the end-of-text token where it has none.

    Raises:
        InputError: It cannot be found or reached, lacks an end-of-text token, or is larger than
            the model's vocabulary.
    """
    architecture = load_config(config)
    if config.folder is not None:
        _check_tokenizer_files(config, config.folder)
    with _loading_errors(config):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**_source(config))
    _check_tokenizer(config, tokenizer, architecture)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _fresh(architecture: PretrainedConfig) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        architecture, dtype=torch.float32
    )
    return model


def _pretrained(config: ModelConfig, architecture: PretrainedConfig) -> PreTrainedModel:
    if config.folder is not None:
        _check_weight_files(config, config.folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        **_source(config),
        config=architecture,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise InputError(
            f"{_origin(config)} lacks {len(missing)} of the model's weights, the first of them"
            f" {missing[0]}; give a checkpoint of a causal language model, or model.init=random."
        )
    return model


def _source(config: ModelConfig) -> dict[str, Any]:
    """Returns the arguments that every ``from_pretrained`` shares."""
    if config.folder is not None:
        source = {"pretrained_model_name_or_path": str(config.folder), "local_files_only": True}
    else:
        source = {
            "pretrained_model_name_or_path": config.hub_name,
            "revision": config.revision or "main",
            # what is in the cache serves without a network
            "local_files_only": not hub_is_reachable(),
        }
    return {**source, "trust_remote_code": False}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds initialisation, which happens on the CPU, and restores its generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed: it would seed CUDA's global generator too, and leave it so
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def _loading_errors(config: ModelConfig) -> Iterator[None]:
    """Turns what transformers raises for an unusable source into one sentence."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"{_origin(config)} could not be loaded as a causal language model"
            f" ({_first_line(error)}); {_way_out(config)}."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _way_out(config: ModelConfig) -> str:
    if config.folder is not None:
        return "give a folder written by save_pretrained with safetensors, or a hub model"
    if hub_is_reachable():
        return "correct model.hub_name and model.revision, or give a local folder with model.path"
    return (
        "the hub is not reachable: connect, or give local files with model.path=DIR and"
        " task.data_dir=DIR, or run without a network on model=tiny task.source=embedded"
    )


def _origin(config: ModelConfig) -> str:
    """Returns the source in the user's own words, for messages."""
    if config.path is not None:
        return f"model.path={config.path}"
    if config.embedded:
        return f"The embedded model ({EMBEDDED_MODEL})"
    return f"model.hub_name={config.hub_name}"


def _check_folder(config: ModelConfig, folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(
            f"{_origin(config)} must be a folder with a model, and there is none;"
            " give a folder written by save_pretrained, or model=tiny."
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{_origin(config)} must hold config.json; give a folder written by save_pretrained."
        )


def _check_weight_files(config: ModelConfig, folder: Path) -> None:
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise InputError(
            f"{_origin(config)} holds no weights ({' or '.join(WEIGHT_FILES)}; other formats are"
            " not read); give a folder that does, or set model.init=random to train from a fresh"
            " initialisation."
        )


def _check_tokenizer_files(config: ModelConfig, folder: Path) -> None:
    # transformers would build an empty vocabulary without a word
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"{_origin(config)} holds no tokenizer ({', '.join(TOKENIZER_FILES)});"
            " copy the tokenizer's files beside the model's."
        )


def _check_tokenizer(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase, architecture: PretrainedConfig
) -> None:
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"The tokenizer of {_origin(config)} has no end-of-text token; give it an eos_token."
        )
    rows = architecture.get_text_config().vocab_size
    if len(tokenizer) > rows:
        raise InputError(
            f"The tokenizer of {_origin(config)} has {len(tokenizer)} tokens where the model has"
            f" {rows}; give the tokenizer that belongs to the model."
        )
