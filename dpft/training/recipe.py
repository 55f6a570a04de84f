"""What steps are taken with: the same on every process of a run."""

from dataclasses import dataclass

from torch import nn

from dpft.methods.base import Method, MethodPhase
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.shards import ShardedModel
from dpft.parallel.shares import Share
from dpft.training.checkpoint import restore_checkpoint
from dpft.training.learning_rates import learning_rate_factor
from dpft.training.loop import TrainingSet
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
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

    Raises:
        StateError: The checkpoint is of another model.
    """
    recipe.method.begin_step(recipe.model, 0)
    training_state = _fresh_training_state(recipe, steps)
    if resume_point is not None:
        restore_checkpoint(resume_point.checkpoint.path, training_state)
    return training_state


def _fresh_training_state(recipe: Recipe, steps: int) -> TrainingState:
    optimizer = make_optimizer(
        recipe.method.moved_parameters(recipe.model),
        recipe.optimizer,
        learning_rate=recipe.settings.learning_rate,
        weight_decay=recipe.settings.weight_decay,
    )
    factor = learning_rate_factor(recipe.phases, recipe.settings.learning_rate)
    scheduler = make_scheduler(optimizer, recipe.scheduler, steps=steps, factor=factor)
    return TrainingState(model=recipe.model, optimizer=optimizer, scheduler=scheduler)
