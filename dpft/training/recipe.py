"""What steps are taken with: the same on every process of a run."""

from dataclasses import dataclass

from torch import nn

from dpft.methods.base import Method, MethodPhase
from dpft.parallel.ranks import ALONE, Ranks, first_path
from dpft.parallel.shards import ShardedModel
from dpft.parallel.shares import Share
from dpft.training.checkpoint import restore_checkpoint
from dpft.training.learning_rates import learning_rate_factor
from dpft.training.listeners import StepEvaluation
from dpft.training.loop import TrainingSet
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
    check_works_on_shards,
    make_optimizer,
    make_scheduler,
)
from dpft.training.resume import ResumePoint
from dpft.training.training_config import TrainingConfig
from dpft.training.training_state import TrainingState


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that steps are taken with, private or not."""

    model: nn.Module
    """Prepared by ``method``."""
    method: Method
    phases: tuple[MethodPhase, ...]
    """The method's, of the steps to take."""
    training_set: TrainingSet
    settings: TrainingConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    num_examples: int
    """The public number of training examples."""
    evaluation: StepEvaluation | None = None
    """Scores the model between steps; None: it is scored before and after them alone."""
    ranks: Ranks = ALONE
    """The processes that take the steps together."""
    shards: ShardedModel | None = None
    """``model``, where each process has but a shard of it."""

    def __post_init__(self) -> None:
        """Refuses a share that is not this process's.

        Raises:
            ValueError: A record would be added by two processes, or by none.
        """
        share = Share(self.ranks.rank, self.ranks.size)
        if self.training_set.share != share:
            raise ValueError(f"training_set.share must be {share}, got {self.training_set.share}.")

    @property
    def batch_size(self) -> int:
        """The expected batch size."""
        return self.settings.batch_size(self.num_examples)


def prepare_training_state(
    recipe: Recipe, steps: int, resume_point: ResumePoint | None
) -> TrainingState:
    """Returns model, optimizer and schedule as they are before the next step.

    Where the model is in shards, every rank calls this at the same time, and reads its own part of
    the checkpoint from which the first one goes on.

    Args:
        recipe: What steps are taken with.
        steps: How many are planned.
        resume_point: Where the run goes on from; None: it begins, or, on another rank than the
            first, that one knows.

    Raises:
        InputError: The optimizer cannot work on shards.
        StateError: The checkpoint is of another model.
        SaidElsewhere: Another rank cannot read its part, and the first one says why.
    """
    if recipe.shards is not None:
        check_works_on_shards(recipe.optimizer)
    recipe.method.begin_step(recipe.model, 0)
    training_state = _fresh_training_state(recipe, steps)
    path = None if resume_point is None else resume_point.checkpoint.path
    if recipe.shards is not None:
        path = first_path(path, recipe.ranks)
    if path is not None:
        restore_checkpoint(path, training_state, shards=recipe.shards)
    return training_state


def _fresh_training_state(recipe: Recipe, steps: int) -> TrainingState:
    optimizer = make_optimizer(
        recipe.method.moved_parameters(recipe.model),
        recipe.optimizer,
        learning_rate=recipe.settings.peak_learning_rate,
        weight_decay=recipe.settings.weight_decay,
    )
    factor = learning_rate_factor(recipe.phases, recipe.settings.peak_learning_rate)
    scheduler = make_scheduler(optimizer, recipe.scheduler, steps=steps, factor=factor)
    return TrainingState(model=recipe.model, optimizer=optimizer, scheduler=scheduler)
