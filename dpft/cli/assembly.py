"""From a configuration to the parts of a run, shared by the subcommands."""

from collections.abc import Callable
from dataclasses import dataclass

from dpft.config.schema import TrainConfig
from dpft.errors import InputError
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.planning import make_plan
from dpft.privacy.settings import DifferentialPrivacy, NoPrivacy, PrivacyConfig
from dpft.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class PublicSize:
    """The public number of training examples and who says so."""

    num_examples: int
    source: str


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run will do, fixed before any record is looked at."""

    size: PublicSize
    steps: int
    privacy: PrivacyPlan | None
    """None for a non-private run."""


def public_size(task: Task, privacy: PrivacyConfig, count_rows: Callable[[], int]) -> PublicSize:
    """Returns the number of training examples that stands as public (DESIGN section 4).

    Args:
        task: May have a published number.
        privacy: May have the user's number, which leads.
        count_rows: Counts the rows read, the last resort; called only then.
    """
    given = privacy.num_examples if isinstance(privacy, DifferentialPrivacy | NoPrivacy) else None
    if given is not None:
        return PublicSize(num_examples=given, source="privacy.num_examples")
    if task.public_num_train_examples is not None:
        published = task.public_num_train_examples
        return PublicSize(num_examples=published, source=f"published size of task {task.name}")
    counted = "count of the rows read, taken as public"
    return PublicSize(num_examples=count_rows(), source=counted)


def plan_run(config: TrainConfig, count_rows: Callable[[], int]) -> RunPlan:
    """Returns the plan of a run, its noise calibrated.

    Raises:
        InputError: The budget cannot be met or the batch is larger than the data.
    """
    size = public_size(config.task, config.privacy, count_rows)
    steps = config.train.planned_steps(size.num_examples)
    if not isinstance(config.privacy, DifferentialPrivacy):
        return RunPlan(size=size, steps=steps, privacy=None)
    plan = make_plan(
        config.privacy,
        num_examples=size.num_examples,
        expected_batch_size=config.train.expected_batch_size,
        steps=steps,
        method=config.method.name,
    )
    return RunPlan(size=size, steps=steps, privacy=plan)


def refuse_two_lengths(overrides: list[str]) -> None:
    """Refuses overrides that give both train.epochs and train.steps.

    Raises:
        InputError: Both are given.
    """
    keys = {override.partition("=")[0].lstrip("+~") for override in overrides}
    if {"train.epochs", "train.steps"} <= keys:
        raise InputError(
            "at most one of train.epochs and train.steps may be given, got both; steps replaces "
            "the recipe's epochs."
        )
