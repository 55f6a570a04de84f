"""The configuration section ``model``: where a model comes from, and checks of its files.

Weights are safetensors: nothing in a checkpoint is unpickled or executed (docs/dev/design.md, rule
11).
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
"""transformers' model type of a model of timm, which comes with torchvision or not at all."""
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("spm.model", "sentencepiece.bpe.model"),
)


class ModelConfig(Section):
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
    architecture: dict[str, Any] = Field(default_factory=dict)
    """A model's config.json, model_type among it: what model.init=random and dpft plan go by where
    no folder is given. Of a language model the tokenizer says how large its vocabulary is. Of a
    checkpoint that is found, its dropout rates alone replace the checkpoint's."""
    replace_batch_norm: bool = False
    """Put a GroupNorm in the place of each BatchNorm, which mixes the examples of a batch."""
    standardize_weights: bool = False
    """Standardize the weights of each convolution before it is applied (De et al. 2022)."""
    init: Literal["pretrained", "random"] = "pretrained"
    """pretrained, or random to train from a fresh initialization of the same architecture."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    quantization: str = UNQUANTIZED
    """Hold the frozen weights of linear layers in fewer bits, under adapters that train: nf4 in 4
    (QLoRA), int8 in 8, none in 32. Needs the extra ``quantization``."""
    pooling: Literal["mean"] | None = None
    """How a classification head reads the text: null, as the architecture's own head does; mean,
    the mean over its tokens."""
    lora_targets: tuple[str, ...] | None = None
    """Names of the modules that method=lora adapts by default; null: found by name."""

    tokenizer: str | None = None
    """Folder of a run of dpft tokenizer, whose vocabulary and epsilon it takes, or of any
    tokenizer; for model.init=random. null: the model's own."""
    tokenizer_is_public: bool = False
    """Say that no private text made the tokenizer, where no ledger beside it says what it cost."""

    def _check_fields(self) -> None:
        self._check_quantization()
        if self.tokenizer is not None and self.init != "random":
            raise InputError(
                f"model.tokenizer needs model.init=random, got {self.init}: a checkpoint's weights"
                " are of its own vocabulary; drop one."
            )
        places = (self.path, self.hub_name, self.embedded or None, self.architecture or None)
        if all(place is None for place in places):
            raise InputError("model needs model.path, model.hub_name or model.embedded=true.")
        if self.has_no_weights and self.init != "random":
            raise InputError(
                f"model={self.name} has no weights, only an architecture; set model.init=random."
            )

    def _check_quantization(self) -> None:
        quantization = self.quantization
        if quantization not in QUANTIZATIONS:
            raise InputError(
                f"model.quantization must be one of {', '.join(QUANTIZATIONS)}, got"
                f" {quantization!r}."
            )
        if quantization == UNQUANTIZED:
            return
        if self.init != "pretrained":
            raise InputError(
                f"model.quantization={quantization} needs model.init=pretrained, got {self.init}:"
                " frozen weights that never learned anything are of no use; set it to none."
            )
        if self.is_no_address:
            raise InputError(
                f"model.quantization={quantization} needs weights that are found again where they"
                f" lie, got model={self.name}, which a run saves anew; set model.path to a folder"
                " of your own, or model.hub_name."
            )

    @property
    def is_quantized(self) -> bool:
        """Whether frozen weights are held in fewer bits."""
        return self.quantization != UNQUANTIZED

    @property
    def has_no_weights(self) -> bool:
        """Whether nothing but ``architecture`` says what it is."""
        return self.path is None and self.hub_name is None and not self.embedded

    @property
    def is_drawn(self) -> bool:
        """Whether ``architecture`` says what it is: where nothing else does, or needs to."""
        starts_at_random = self.init == "random" and self.path is None and not self.embedded
        return bool(self.architecture) and (self.has_no_weights or starts_at_random)

    @property
    def folder(self) -> Path | None:
        """The local folder it is read from, or None for the hub."""
        if self.path is not None:
            return Path(self.path).expanduser()
        return EMBEDDED_MODEL if self.embedded else None

    @property
    def is_no_address(self) -> bool:
        """Whether nobody else finds the model there: in this installation, or in a run's private/.

        What trains on it is then saved together with it.
        """
        return self.embedded if self.path is None else is_base_model(self.path)


def source(config: ModelConfig) -> dict[str, Any]:
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
def loading_errors(config: ModelConfig, wanted: str = "language model") -> Iterator[None]:
    """Turn what transformers raises for an unusable source into one sentence.

    The block reads a model and no record, so that the sentence may quote what was raised.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError, ImportError) as error:
        if isinstance(error, ImportError) and "timm" in str(error).lower():
            raise InputError(f"{origin(config)} needs timm, {_lack_of_timm()}.") from error
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"{origin(config)} could not be loaded as a {wanted}"
            f" ({reason}); {_way_out(config, error)}."
        ) from error


def _lack_of_timm() -> str:
    """Returns why no model of timm can be made here, and what to do about it."""
    if find_spec("timm") is None or find_spec("torchvision") is None:
        return "which is not installed; pip install 'dpft[vision]'"
    return (
        "which cannot be imported, since torchvision cannot; install the torchvision that was built"
        f" for torch {version('torch')}"
    )


def _way_out(config: ModelConfig, error: Exception) -> str:
    if isinstance(error, ImportError):
        return (
            "install what it asks for, or give a checkpoint that does without: of a quantized one"
            " (quantization_config in its config.json), the model before quantization"
        )
    if config.folder is not None:
        return "give a folder written by save_pretrained with safetensors, or a hub model"
    if hub_is_reachable():
        return "correct model.hub_name and model.revision, or give a local folder with model.path"
    return (
        "the hub is not reachable: connect, or give local files with model.path=DIR and"
        " task.data_dir=DIR, or run without a network on model=tiny task.source=embedded"
    )


def origin(config: ModelConfig) -> str:
    """Returns the source in the user's own words, for messages."""
    if config.path is not None:
        return f"model.path={config.path}"
    if config.embedded or config.is_drawn:
        return f"model={config.name}"
    return f"model.hub_name={config.hub_name}"


def check_folder(config: ModelConfig, folder: Path) -> None:
    """Refuses what is no folder of a model.

    Raises:
        InputError: There is no folder, or no config.json in it.
    """
    if not folder.is_dir():
        raise InputError(
            f"{origin(config)} must be a folder with a model, and there is none;"
            " give a folder written by save_pretrained, or model=tiny."
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{origin(config)} must hold config.json; give a folder written by save_pretrained."
        )


def check_weight_files(config: ModelConfig, folder: Path) -> None:
    """Refuses a folder without safetensors, or with an adapter beside them.

    Raises:
        InputError: There are none, or a loader may put the adapter on them or on another base.
    """
    if (folder / ADAPTER).exists():
        raise InputError(
            f"{origin(config)} holds an adapter ({ADAPTER}) beside the model; give a folder of the"
            " model alone, or of the adapter merged into it."
        )
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise InputError(
            f"{origin(config)} holds no weights ({' or '.join(WEIGHT_FILES)}; other formats are"
            " not read); give a folder that does, or set model.init=random to train from a fresh"
            " initialization."
        )


def check_tokenizer_files(config: ModelConfig, folder: Path) -> None:
    """Refuses a folder without a tokenizer.

    Raises:
        InputError: There is none.
    """
    # transformers would build an empty vocabulary without a word
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"{origin(config)} holds no tokenizer ({', '.join(TOKENIZER_FILES)});"
            " copy the tokenizer's files beside the model's."
        )
