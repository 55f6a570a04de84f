"""The root of each subcommand's configuration.

Every section is a dataclass of the room that uses it; this file only says which sections a
subcommand has. ``POLYMORPHIC`` names the sections whose class is chosen by their ``name``.
"""

from dataclasses import dataclass, field

from dpft.errors import InputError
from dpft.evaluation.evaluate import EvalConfig
from dpft.generation.decoding import DecodeConfig
from dpft.methods.base import Method, method_class
from dpft.models.loading import ModelConfig
from dpft.privacy.settings import (
    ACCOUNTANTS,
    DifferentialPrivacy,
    PrivacyConfig,
    privacy_class,
)
from dpft.tasks.base import Task, task_class
from dpft.training.optimizers import OptimizerConfig, SchedulerConfig
from dpft.training.settings import DeviceConfig, TrainingConfig

TASK = {"task": task_class}
POLYMORPHIC = {**TASK, "method": method_class, "privacy": privacy_class}
OUTPUTS = ("table", "json")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """``dpft train``, conf/train.yaml."""

    task: Task
    model: ModelConfig
    method: Method
    privacy: PrivacyConfig
    train: TrainingConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    eval: EvalConfig
    decode: DecodeConfig

    def __post_init__(self) -> None:
        check_loop(self.privacy, self.train)


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What ``dpft plan`` does beyond arithmetic."""

    measure: bool = False
    """Time one synthetic micro-batch."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):
    """``dpft plan``, conf/plan.yaml."""

    plan: PlanSettings = field(default_factory=PlanSettings)
    output: str = "table"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_output(self.output)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """``dpft eval``, conf/eval.yaml."""

    task: Task
    model: ModelConfig
    eval: EvalConfig
    decode: DecodeConfig
    train: DeviceConfig = field(default_factory=DeviceConfig)
    run: str | None = None
    """Folder of a run: its task, and its trained model."""
    predictions: str | None = None
    """File of outputs to score instead of a model."""
    output: str = "table"

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.run is not None and self.predictions is not None:
            raise InputError(
                "at most one of run and predictions may be given, got both; a run's own "
                "predictions.jsonl is scored with predictions=RUN/predictions.jsonl."
            )


@dataclass(frozen=True, kw_only=True)
class AccountConfig:
    """``dpft account``, conf/account.yaml."""

    num_examples: int | None = None
    expected_batch_size: int | None = None
    sample_rate: float | None = None
    epochs: float | None = None
    steps: int | None = None
    delta: float | None = None
    eps: float | None = None
    noise_multiplier: float | None = None
    accountant: str = "prv"
    output: str = "table"

    def __post_init__(self) -> None:
        check_output(self.output)
        check_accountant(self.accountant)
        check_exactly_one(eps=self.eps, noise_multiplier=self.noise_multiplier)
        check_exactly_one(epochs=self.epochs, steps=self.steps)
        check_exactly_one(
            expected_batch_size=self.expected_batch_size, sample_rate=self.sample_rate
        )
        check_positive(
            num_examples=self.num_examples,
            expected_batch_size=self.expected_batch_size,
            sample_rate=self.sample_rate,
            epochs=self.epochs,
            steps=self.steps,
            eps=self.eps,
            noise_multiplier=self.noise_multiplier,
        )


def check_loop(privacy: PrivacyConfig, train: TrainingConfig) -> None:
    """Refuses the loop engine on more than one example at a time.

    In a shared graph a non-finite example spoils the others, so the engine would have to break
    off, and whether it does would show what the records hold.

    Raises:
        InputError: The loop engine is chosen with larger micro-batches.
    """
    loop = isinstance(privacy, DifferentialPrivacy) and privacy.engine == "loop"
    if loop and train.micro_batch_size != 1:
        raise InputError(
            f"privacy.engine=loop needs train.micro_batch_size=1, got {train.micro_batch_size}."
        )


def check_exactly_one(**values: float | None) -> None:
    """Refuses two keys of which both or neither is given.

    Raises:
        InputError: Not exactly one of ``values`` is given.
    """
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"exactly one of {' and '.join(values)} must be given, got "
            f"{'both; drop one of them' if given else 'neither; give one of them'}."
        )


def check_positive(**values: float | None) -> None:
    """Refuses numbers that are not positive.

    Raises:
        InputError: A given number is zero or below.
    """
    for name, value in values.items():
        if value is not None and value <= 0:
            raise InputError(f"{name} must be above 0, got {value}; raise it.")


def check_accountant(accountant: str) -> None:
    """Refuses an accountant that no guarantee may rest on.

    Raises:
        InputError: ``accountant`` is not one of prv, pld and rdp.
    """
    if accountant not in ACCOUNTANTS:
        raise InputError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}.")


def check_output(output: str) -> None:
    """Refuses an output format that no subcommand writes.

    Raises:
        InputError: ``output`` is neither table nor json.
    """
    if output not in OUTPUTS:
        raise InputError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}.")
