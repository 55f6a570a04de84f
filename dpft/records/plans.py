"""Records that ``dpft plan``, ``doctor`` and ``list`` print: cost of a run, a machine, names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from dpft.records.form import (
    AtLeastOne,
    Count,
    Limits,
    NotNegative,
    OneOf,
    Positive,
    Ruled,
    Rules,
    Versioned,
)
from dpft.records.promises import NoPromise, Parameters, PlanPromise, WithTokenizer


@dataclass(frozen=True, kw_only=True)
class PlannedProcesses:
    """The processes that were planned for."""

    strategy: Annotated[str, Limits(choices=("none", "ddp", "fsdp"))]
    """As parallel=."""
    world_size: AtLeastOne
    """How many."""
    shard_size: AtLeastOne
    """Into how many shards the model is cut."""
    accumulate: Annotated[str, Limits(choices=("whole", "sharded"))]
    """Whether sums are kept whole."""
    engine: str | None
    """The clipping engine; null without privacy."""


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of a process at the highest point of a step."""

    weights: Count
    """Of the model."""
    gradients: Count
    """Of the step's sum of gradients."""
    optimizer: Count
    """Of the optimizer's state."""
    activations: Count
    """Of the activations of a micro-batch, and of what the clipper keeps of them."""
    other: Count
    """Of the process, its libraries, and buffers for exchange, noise and update."""
    total: Count
    """All of it."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """Time of the steps on this machine, measured on synthetic micro-batches in one process."""

    seconds_per_step: NotNegative
    """Of a step."""
    seconds_total: NotNegative
    """Of all steps."""
    timed_micro_batch: AtLeastOne
    """Examples of the micro-batch that was timed."""
    tokens_per_example: AtLeastOne
    """Tokens of each example."""


@dataclass(frozen=True, kw_only=True)
class PlannedLora:
    """Layers that LoRA changes."""

    rank: AtLeastOne
    """Rank of each change."""
    scale: Positive
    """Factor of each change."""
    layers: AtLeastOne
    """Number of changed layers."""
    targets: tuple[str, ...]
    """Last parts of their names."""


@dataclass(frozen=True, kw_only=True)
class RunCosts(Parameters):
    """What a run needs of a machine, and how long it takes there."""

    num_examples_source: str
    """Who says how many examples there are."""
    micro_batch_size: AtLeastOne
    """Most records in memory at once."""
    processes: PlannedProcesses
    """The processes that were planned for."""
    memory_per_rank_bytes: RankMemory
    """Bytes of a process at the highest point of a step."""
    device_memory_bytes: Count | None
    """What each process may hold; null where it is not known."""
    largest_micro_batch: Count | None
    """Records of the largest micro-batch that fits; null where it is not known."""
    measured: MeasuredTime | None = None
    """Time of the steps; absent with plan.measure=false or if it cannot be measured here."""
    lora: PlannedLora | None = None
    """With method=lora."""


@dataclass(frozen=True, kw_only=True)
class PrivatePlan(PlanPromise, WithTokenizer, RunCosts, Versioned):
    """A private run."""

    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    signal_to_noise: Positive
    """Length of all clipped gradients of the run over that of its noise, at best."""
    noise_in_last_weights: Positive | None = None
    """Of noise that hangs together, over that of independent steps at the same epsilon, by RDP and
    under the run's schedule and momentum; where epsilon is asked for."""


@dataclass(frozen=True, kw_only=True)
class OpenPlan(NoPromise, RunCosts, Versioned):
    """A run without privacy."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check."""

    what: str
    """What was looked for."""
    state: Literal["ok", "missing"]
    """Whether it was found."""
    found: str
    """In words: a version, a number of GiB, or what to install."""
    essential: bool = False
    """Whether dpft cannot train without it."""


@dataclass(frozen=True, kw_only=True)
class Doctor(Versioned):
    """What this machine has and lacks."""

    can_train: bool
    """Whether nothing essential is missing."""
    checks: tuple[Check, ...]
    """Every check."""


@dataclass(frozen=True, kw_only=True)
class Listing(Ruled):
    """What was asked for, each name with a line."""

    RULES: ClassVar[Rules] = (OneOf(("tasks", "models", "methods", "recipes", "metrics")),)
    tasks: Mapping[str, str] | None = None
    """The tasks."""
    models: Mapping[str, str] | None = None
    """The models."""
    methods: Mapping[str, str] | None = None
    """The methods."""
    recipes: Mapping[str, str] | None = None
    """The recipes."""
    metrics: Mapping[str, str] | None = None
    """The metrics."""
