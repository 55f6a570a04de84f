"""The configuration section ``model``: the location of a model, and checks of its files.

Weights are safetensors, so nothing in a checkpoint is unpickled or executed (docs/dev/design.md,
rule 11).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from safetensors import SafetensorError

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.hub import hub_is_reachable
from dpft.model_digest import ADAPTER
from dpft.run_folder import is_base_model

EMBEDDED_MODEL = Path(__file__).parent / "embedded" / "tiny"
MEAN = "mean"
UNQUANTIZED = "none"
QUANTIZATIONS = (UNQUANTIZED, "nf4", "int8")
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
TIMM = "timm_wrapper"
"""Model type that transformers gives to timm models, which need torchvision."""
GGUF = ".gguf"
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("spm.model", "sentencepiece.bpe.model"),
)


class ModelConfig(Section):
    """Choice of a model, ``conf/model/<name>.yaml``; path overrides embedded, embedded the Hub."""

    name: str
    """Name of the model in reports."""
    hub_name: str | None = None
    """Repository on the Hugging Face Hub."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    license: str | None = None
    """License of the weights, as the Hub's identifier, such as apache-2.0; null: not known. Set it
    with model.path or model.hub_name if those weights have another license."""
    path: str | None = None
    """Local folder written by ``save_pretrained``."""
    embedded: bool = False
    """Use the small model that is bundled with dpft."""
    architecture: dict[str, Any] = Field(default_factory=dict)
    """Entries of a config.json, including model_type, for model.init=random and dpft plan without a
    model folder. The tokenizer determines the vocabulary size of a language model. If a checkpoint
    is found, only the dropout rates given here replace its values."""
    replace_batch_norm: bool = False
    """Replace each BatchNorm, which mixes the examples of a batch, by a GroupNorm."""
    standardize_weights: bool = False
    """Standardize the weights of each convolution before applying it (De et al. 2022)."""
    init: Literal["pretrained", "random"] = "pretrained"
    """pretrained, or random to train from a fresh initialization of the same architecture."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which takes less memory and more time."""
    quantization: str = UNQUANTIZED
    """Number format of the frozen weights of linear layers, under trained adapters: nf4 takes 4
    bits (QLoRA), int8 takes 8, none takes 32. Needs the extra ``quantization``."""
    pooling: Literal["mean"] | None = None
    """How a classification head reads the text: null, as the architecture's own head does; mean,
    the mean over the tokens."""
    lora_targets: tuple[str, ...] | None = None
    """Names of the modules that method=lora adapts by default; null: dpft finds them by name."""

    tokenizer: str | None = None
    """Folder of a dpft tokenizer run, whose vocabulary and epsilon are used, or of any tokenizer.
    Requires model.init=random. null: the model's own tokenizer."""
    tokenizer_is_public: bool = False
    """Declare that no private text was used to make the tokenizer, if no ledger next to it records
    its cost."""

    def _check_fields(self) -> None:
        self._check_quantization()
        if self.tokenizer is not None and self.init != "random":
            raise InputError(
                f"model.tokenizer needs model.init=random, got {self.init}, because the weights of"
                " a checkpoint belong to its own vocabulary.",
                key="model.tokenizer",
                value=self.tokenizer,
                hint="model.init=random",
            )
        places = (self.path, self.hub_name, self.embedded or None, self.architecture or None)
        if all(place is None for place in places):
            raise InputError(
                "model needs model.path, model.hub_name or model.embedded=true.",
                key="model",
                value=self.name,
            )
        if self.has_no_weights and self.init != "random":
            raise InputError(
                f"model={self.name} has no weights, only an architecture.",
                key="model.init",
                value=self.init,
                hint="model.init=random",
            )

    def _check_quantization(self) -> None:
        quantization = self.quantization
        if quantization not in QUANTIZATIONS:
            raise InputError(
                f"model.quantization must be one of {', '.join(QUANTIZATIONS)}, got"
                f" {quantization!r}.",
                key="model.quantization",
                value=quantization,
            )
        if quantization == UNQUANTIZED:
            return
        if self.init != "pretrained":
            raise InputError(
                f"model.quantization={quantization} needs model.init=pretrained, got {self.init},"
                " because quantized weights stay frozen and would stay random.",
                key="model.quantization",
                value=quantization,
                hint="model.quantization=none",
            )
        if self.is_no_address:
            raise InputError(
                f"model.quantization={quantization} does not support model={self.name}, because a"
                " run would have to save this model with its adapter. Set model.path to a folder of"
                " yours, or set model.hub_name.",
                key="model.quantization",
                value=quantization,
            )

    @property
    def is_quantized(self) -> bool:
        """Whether frozen weights are stored in fewer bits."""
        return self.quantization != UNQUANTIZED

    @property
    def has_no_weights(self) -> bool:
        """Whether only ``architecture`` specifies the model."""
        return self.path is None and self.hub_name is None and not self.embedded

    @property
    def is_drawn(self) -> bool:
        """Whether ``architecture`` specifies the model, because no other source is used."""
        starts_at_random = self.init == "random" and self.path is None and not self.embedded
        return bool(self.architecture) and (self.has_no_weights or starts_at_random)

    @property
    def folder(self) -> Path | None:
        """Local folder of the model, or None for the Hub."""
        if self.path is not None:
            return Path(self.path).expanduser()
        return EMBEDDED_MODEL if self.embedded else None

    @property
    def is_no_address(self) -> bool:
        """Whether the model is stored only in this installation or in a run's private/ folder.

        An adapter that was trained on such a model is saved together with the model.
        """
        return self.embedded if self.path is None else is_base_model(self.path)


def source(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments that all ``from_pretrained`` calls share."""
    if config.folder is not None:
        source = {"pretrained_model_name_or_path": str(config.folder), "local_files_only": True}
    else:
        source = {
            "pretrained_model_name_or_path": config.hub_name,
            "revision": config.revision or "main",
            # without a network, use the files in the cache
            "local_files_only": not hub_is_reachable(),
        }
    return {**source, "trust_remote_code": False}


@contextmanager
def loading_errors(config: ModelConfig, wanted: str = "language model") -> Iterator[None]:
    """Convert exceptions of transformers for a model that cannot be loaded to an ``InputError``.

    The block must read a model and no record, because the message may quote the exception.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError, ImportError) as error:
        key, value = address(config)
        if _is_gated(error):
            raise InputError(
                f"{origin(config)} is a gated model, and the Hub denied access to it. Accept its"
                f" license at https://huggingface.co/{config.hub_name}, then log in.",
                key=key,
                value=value,
                hint="hf auth login",
            ) from error
        if isinstance(error, ImportError) and "timm" in str(error).lower():
            raise InputError(
                f"{origin(config)} needs timm, {_lack_of_timm()}.", key=key, value=value
            ) from error
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"{origin(config)} could not be loaded as a {wanted}"
            f" ({reason}). {_remedy(config, error)}.",
            key=key,
            value=value,
        ) from error


def _is_gated(error: BaseException | None) -> bool:
    """Return whether the Hub denied access to a gated model; transformers wraps its error."""
    from huggingface_hub.errors import GatedRepoError

    while error is not None and not isinstance(error, GatedRepoError):
        error = error.__cause__ or error.__context__
    return error is not None


def _lack_of_timm() -> str:
    """Return the reason why timm models cannot be built on this machine, and how to fix it."""
    if find_spec("timm") is None or find_spec("torchvision") is None:
        return "which is not installed. Install it with pip install 'dpft[vision]'"
    return (
        "which cannot be imported, because torchvision cannot. Install the torchvision that was"
        f" built for torch {version('torch')}"
    )


def _remedy(config: ModelConfig, error: Exception) -> str:
    if isinstance(error, ImportError):
        return (
            "Install the missing package, or give a checkpoint that does not need it, such as the"
            " original of a quantized model (quantization_config in its config.json)"
        )
    if config.folder is not None:
        return "Give a folder written by save_pretrained with safetensors, or a hub model"
    if hub_is_reachable():
        return "Correct model.hub_name and model.revision, or give a local folder with model.path"
    return (
        "Connect, because the hub is not reachable, or give local files with model.path=DIR and"
        " task.data_dir=DIR, or use model=tiny task.source=embedded without a network"
    )


def address(config: ModelConfig) -> tuple[str, str]:
    """Return the configuration key of the model's location, and its value."""
    if config.path is not None:
        return "model.path", config.path
    if config.embedded or config.is_drawn:
        return "model", config.name
    return "model.hub_name", f"{config.hub_name}"


def origin(config: ModelConfig) -> str:
    """Return the override that gives the model's location, for messages."""
    return "=".join(address(config))


def check_folder(config: ModelConfig, folder: Path) -> None:
    """Reject a folder that is not the folder of a model.

    Raises:
        InputError: The folder does not exist, or contains no config.json.
    """
    key, value = address(config)
    if not (folder / "config.json").is_file():
        _reject_gguf(config, folder)
    if not folder.is_dir():
        raise InputError(
            f"{origin(config)} must be a folder with a model, but no such folder exists. Give a"
            " folder written by save_pretrained, or model=tiny.",
            key=key,
            value=value,
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{origin(config)} must contain config.json. Give a folder written by save_pretrained.",
            key=key,
            value=value,
        )


def _reject_gguf(config: ModelConfig, place: Path) -> None:
    """Reject a GGUF file, or a folder that contains a GGUF file.

    Raises:
        InputError: The path is a GGUF file, or a folder that contains one.
    """
    is_file = place.suffix == GGUF and not place.is_dir()
    file = place if is_file else next(place.glob(f"*{GGUF}"), None)
    if file is not None:
        raise InputError(
            f"{origin(config)} has its weights in a GGUF file, and dpft reads safetensors. Convert"
            f" them with transformers, by from_pretrained(..., gguf_file={file.name!r}) and"
            " save_pretrained, as docs/how-to/lora.md shows.",
            key="model.path",
            value=config.path,
        )


def check_weight_files(config: ModelConfig, folder: Path) -> None:
    """Reject a folder without safetensors, or with an adapter next to them.

    Raises:
        InputError: The folder has no safetensors, or a loader may put the adapter on them or on
            another base.
    """
    key, value = address(config)
    if (folder / ADAPTER).exists():
        raise InputError(
            f"{origin(config)} contains an adapter ({ADAPTER}) next to the model. Give a folder"
            " with only the model, or merge the adapter into the model.",
            key=key,
            value=value,
        )
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        _reject_gguf(config, folder)
        raise InputError(
            f"{origin(config)} contains no weights ({' or '.join(WEIGHT_FILES)}; other formats are"
            " not read). Give a folder that does, or train from random weights.",
            key=key,
            value=value,
            hint="model.init=random",
        )


def check_tokenizer_files(config: ModelConfig, folder: Path) -> None:
    """Reject a folder without a tokenizer.

    Raises:
        InputError: The folder contains no tokenizer.
    """
    key, value = address(config)
    # transformers would silently build an empty vocabulary
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"{origin(config)} contains no tokenizer ({', '.join(TOKENIZER_FILES)}). Copy the files"
            " of the tokenizer into the folder.",
            key=key,
            value=value,
        )
