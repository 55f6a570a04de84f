"""config.yaml of a run, read in one place: what a report says of it, and what it asked for.

Commands that train or evaluate load the whole file into the configuration's own dataclasses
(``dpft.config.load``). Reports stand below those, and print a run of any version and any task: they
read what they name, each key with its kind, and leave the others alone. A key that is null counts
as one that is absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from dpft.errors import InputError
from dpft.files import read_yaml
from dpft.records.form import OTHER_KEYS, Misfit, parse

Others = Annotated[Mapping[str, Any], OTHER_KEYS]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a configuration, of which some keys are named."""

    others: Others
    """Its other keys."""


@dataclass(frozen=True, kw_only=True)
class NamedSection(Section):
    """A section whose choice has a name."""

    name: str
    """Name of the choice."""


@dataclass(frozen=True, kw_only=True)
class ModelSection(NamedSection):
    """The model that a run started from."""

    path: str | None = None
    """Its folder."""
    hub_name: str | None = None
    """Its name on the hub."""
    embedded: bool | None = None
    """Whether it ships with dpft."""
    init: str | None = None
    """Where its weights come from."""
    replace_batch_norm: bool | None = None
    """Whether each BatchNorm was replaced."""
    standardize_weights: bool | None = None
    """Whether the weights of convolutions are standardized."""


@dataclass(frozen=True, kw_only=True)
class TaskSection(NamedSection):
    """What the records are."""

    source: str | None = None
    """Where they come from."""
    data_dir: str | None = None
    """The folder that has them."""
    hub_name: str | None = None
    """Their name on the hub."""
    urls: Mapping[str, Any] | None = None
    """Their addresses, by split."""
    max_length: int | None = None
    """Most tokens of a record."""
    image_size: int | None = None
    """Pixels of an image's side."""
    augmentations: int | None = None
    """Random views of a record."""
    mean: Any | None = None
    """What is subtracted from a pixel."""
    std: Any | None = None
    """What it is divided by."""
    label: str | None = None
    """Column of a class."""
    prompt: str | None = None
    """Template of what a model reads."""
    objective: str | None = None
    """What a model learns of a record."""
    metrics: tuple[str, ...] | None = None
    """Names of the metrics."""


@dataclass(frozen=True, kw_only=True)
class TrainSection(Section):
    """How a model was trained."""

    learning_rate: float
    """At its highest."""
    weight_decay: float
    """By step."""
    precision: str | None = None
    """In which a model computed."""
    seed: int | None = None
    """Of the model's first weights."""
    average: str | None = None
    """Which average of the weights is taken; absent in files of dpft 0.2.0 or before."""
    average_released: bool | None = None
    """Whether it is what is released."""
    average_decay: float | None = None
    """Of ema."""
    average_tail: float | None = None
    """Share of the steps that tail averages."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSection(Section):
    """What was scored."""

    held_out: float | None = None
    """Share of the records that were scored and not trained on."""


@dataclass(frozen=True, kw_only=True)
class AuditSection(Section):
    """Canaries that were put among the records."""

    canaries: int | None = None
    """Each trained on by a coin."""
    exposure_canaries: Any | None = None
    """Each trained on as often as is said."""
    white_box: bool | None = None
    """Whether steps were held against them."""


@dataclass(frozen=True, kw_only=True)
class PrivacySection(Section):
    """What was asked of privacy; as it stands there, whatever it is."""

    name: Any | None = None
    """dp, none, or another choice."""
    eps: Any | None = None
    """The target."""
    total_eps: Any | None = None
    """The target of a training and its tokenizer."""
    delta: Any | None = None
    """At which it holds."""
    unit: Any | None = None
    """Whose contribution is hidden."""
    num_examples: Any | None = None
    """The public number of examples."""
    noise_multiplier: Any | None = None
    """The noise, where it was given."""
    noise_seed: Any | None = None
    """The seed that makes noise predictable."""
    show_diagnostics: bool | None = None
    """Whether losses were shown."""


@dataclass(frozen=True, kw_only=True)
class SavedConfiguration(Section):
    """config.yaml of any command that makes a run."""

    task: TaskSection | None = None
    """What the records are."""
    privacy: PrivacySection | None = None
    """What was asked of privacy."""
    tokenizer: Any | None = None
    """Which vocabulary is made; of ``dpft tokenizer`` alone."""

    @property
    def is_open(self) -> bool:
        """Whether it is of a run with ``privacy=none``."""
        return self.privacy is not None and self.privacy.name == "none"


@dataclass(frozen=True, kw_only=True)
class RunConfiguration(Section):
    """config.yaml of a run that trains a model."""

    model: ModelSection
    """The model that it started from."""
    task: TaskSection
    """What the records are."""
    method: NamedSection
    """What trains."""
    train: TrainSection
    """How."""
    scheduler: NamedSection
    """How the learning rate changes."""
    optimizer: NamedSection
    """What moves the weights."""
    privacy: PrivacySection
    """What was asked of privacy."""
    eval: EvaluationSection | None = None
    """What was scored."""
    audit: AuditSection | None = None
    """Canaries among the records."""
    reference: tuple[Any, ...] | None = None
    """Rows of published tables."""
    reference_maps: tuple[Any, ...] | None = None
    """Published maps over keys."""


Configuration = TypeVar("Configuration")


def parse_configuration(values: Any, kind: type[Configuration]) -> Configuration:
    """Returns what plain values of a configuration, or of a section of one, say.

    Raises:
        Misfit: They are none of that kind.
    """
    return parse(_given(values), kind)


def read_saved(path: Path) -> SavedConfiguration | None:
    """Returns what a config.yaml asked for; None where there is none that says anything.

    Raises:
        InputError: It cannot be read, or is such as dpft does not write.
    """
    values = read_yaml(path) if path.is_file() else None
    if not isinstance(values, dict):
        return None
    known = {name: part for name, part in values.items() if isinstance(part, dict)}
    try:
        return parse_configuration(known, SavedConfiguration)
    except Misfit as misfit:
        raise InputError(f"cannot read {path}: {misfit}; put it back as it was.") from None


def _given(values: Any) -> Any:
    """Returns values without the keys that are null."""
    if isinstance(values, Mapping):
        return {name: _given(part) for name, part in values.items() if part is not None}
    return values
