"""Records of a run's files that dpft reads again: config.yaml's keys, and small notes of its own.

Commands that train or evaluate load the whole config.yaml into the configuration's own dataclasses
(``dpft.config.load``). Reports stand below those, and print a run of any version and any task: they
read what they name, each key with its kind, and leave the others alone. A key that is null counts
as one that is absent.

Private are state.json of a checkpoint (how far a run had come, and what it is bound to when it
goes on), by what a run knows its records again, each step's scores of canaries and its signal, and
how the jobs of a sweep ended; public is how far a tracker has come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from dpft.files import read_yaml
from dpft.records.form import OTHER_KEYS, AtLeastOne, Count, Versioned, parse
from dpft.records.promises import Process

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
    exposure_canaries: int | None = None
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
    show_diagnostics: bool | None = None
    """Whether losses were shown."""


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


def read_saved(path: Path) -> Mapping[str, Any]:
    """Returns the values of a config.yaml of any command; none where there is no such file.

    Raises:
        InputError: It cannot be read.
    """
    values = read_yaml(path) if path.is_file() else None
    return values if isinstance(values, dict) else {}


def _given(values: Any) -> Any:
    """Returns values without the keys that are null."""
    if isinstance(values, Mapping):
        return {name: _given(part) for name, part in values.items() if part is not None}
    return values


@dataclass(frozen=True, kw_only=True)
class Fingerprint(Versioned):
    """private/fingerprint: by what a run knows its training records again."""

    key: str
    """Random, in hexadecimal."""
    hmac: str
    """Of the records under the key: a plain hash would tell whoever has it and a guess."""


@dataclass(frozen=True, kw_only=True)
class EndedJob(Versioned):
    """private/exit_codes/NUMBER.json of a sweep: how a job of it ended."""

    command: str
    """Tells the jobs of one command from those of an earlier one in the same folder."""
    exit_code: int
    """As a process has it."""
    folder: str
    """The run's, seen from the sweep's."""
    log: str | None = None
    """Where a submitted job says what it says."""


@dataclass(frozen=True, kw_only=True)
class StepEntry:
    """A line of private/steps.jsonl, as far as a report reads it."""

    step: AtLeastOne
    """Number of the step."""
    processes: Process | None = None
    """The processes that took it; absent where they are those of the step before."""
    others: Annotated[Mapping[str, Any], OTHER_KEYS]
    """By what a step that is taken again is held against its first time."""


@dataclass(frozen=True, kw_only=True)
class WhiteBoxLine:
    """A line of private/white_box.jsonl: what a step's noisy gradient has of every canary's own."""

    step: AtLeastOne
    """Number of the step."""
    now: tuple[float, ...]
    """Along each canary's gradient at the step's own weights."""
    before: tuple[float, ...]
    """Along its gradient before training."""


SIGNAL_STEPS = 30
"""Updates, from the first, over which the ratio is averaged (Li et al. 2022, section 3.1.1)."""


@dataclass(frozen=True, kw_only=True)
class KnownLedger:
    """The ledger as a checkpoint was written after it."""

    lines: Count
    """Its whole lines."""
    head: str
    """SHA-256 of the last one."""
    position: Count
    """Steps of the ledger that the weights stand at; more than their own where some were taken
    again."""


@dataclass(frozen=True, kw_only=True)
class BoundRun:
    """What a run is bound to when it goes on; of a private run all but ``clipping``."""

    plan: Any | None = None
    """The plan in the ledger's first line."""
    clipper: tuple[Mapping[str, Any], ...] | None = None
    """How each phase's gradients are clipped, in the ledger's first line."""
    clipping: Any | None = None
    """What is drawn and how it is clipped, of a run that adds no noise."""
    environment: Mapping[str, Any] | None = None
    """What the bits of a step's sum depend on."""
    promises: Mapping[str, bool] | None = None
    """Statements of the report that rest on the configuration alone."""
    run_id: str | None = None
    """What names the run in its ledger."""
    frozen: Mapping[str, str] | None = None
    """Digests, before the first step, of what is released and nothing moves."""
    ledger: KnownLedger | None = None
    """The ledger as it was then."""
    stream: Count = 0
    """How many steps were in it when the stream of noise began that the next step is in."""
    loss_scale: Mapping[str, Any] | None = None
    """Where an adapted loss scale stands."""


@dataclass(frozen=True, kw_only=True)
class CheckpointState(Versioned):
    """All of a checkpoint but its tensors and its secret keys."""

    step: Count
    """Steps that the weights had taken."""
    scheduler_step: int
    """Steps of the learning rate's schedule."""
    run: BoundRun
    """What the run is bound to."""
    shards: int | None = None
    """Into how many shards its tensors are cut; absent where they are whole."""
    keys_changed: Count | None = None
    """When the file of secret keys was last changed, in nanoseconds."""
    checksums: Mapping[str, str]
    """File to SHA-256."""
    checksum: str | None = None
    """Of all the rest of this file."""


@dataclass(frozen=True, kw_only=True)
class ShuffledState:
    """generators.json of an ordinary run: where its generators stand."""

    order: str
    """Of the order of records, in hexadecimal."""
    waiting: tuple[int, ...]
    """Units of this epoch that no step has drawn yet."""
    dropout: str
    """Of torch's own generator, in hexadecimal."""
