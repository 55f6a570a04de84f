"""Training states of a small model, whole or in shards, and what is in them, for a comparison."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dpft.parallel.ranks import Ranks, make_grid
from dpft.parallel.sharding import repeated_blocks, whole
from dpft.parallel.shards import ShardedModel
from dpft.training.checkpoint import BoundRun, restore_checkpoint, save_checkpoint
from dpft.training.optimizers import (
    AdamW,
    OptimizerConfig,
)
from dpft.training.training_state import TrainingState, model_state, optimizer_state
from tests.training.toy import plan, take_steps, tiny_model, training_state


@dataclass
class Contents:
    """All of a training state, whole."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    """Those of the optimizer."""
    schedule: int
    learning_rate: float

    def check_same(self, other: "Contents") -> None:
        """Fails where a bit differs."""
        assert (self.schedule, self.learning_rate) == (other.schedule, other.learning_rate)
        for own, others in ((self.weights, other.weights), (self.moments, other.moments)):
            assert own.keys() == others.keys()
            assert [name for name in own if not torch.equal(own[name], others[name])] == []


def state_on(
    ranks: Ranks, shard_size: int | None, *, seed: int = 0, config: OptimizerConfig | None = None
) -> tuple[TrainingState, ShardedModel | None]:
    """Return a state before its first step, cut where a number of shards is given."""
    model = tiny_model(seed)
    model.few_rows = nn.Parameter(torch.randn(3, 2))  # the last of four shards has none of them
    model.register_buffer("count", torch.tensor(100 + seed))
    shards = None
    if shard_size is not None:
        grid = make_grid(ranks, shard_size, torch.device("cpu"))
        shards = ShardedModel(model, grid, ranks, blocks=repeated_blocks(model))
        ranks.serving_other_ranks = shards.serving_other_ranks
    optimizer = (config or AdamW()).make(model.parameters(), learning_rate=0.1, weight_decay=0.01)
    return training_state(model, optimizer), shards


def contents(state: TrainingState) -> Contents:
    """Return all of a state; every rank calls it."""
    return Contents(
        weights={n: whole(t.detach()).clone() for n, t in model_state(state.model).items()},
        moments={n: whole(t.detach()).clone() for n, t in optimizer_state(state).items()},
        schedule=state.scheduler.last_epoch,
        learning_rate=float(state.optimizer.param_groups[0]["lr"]),
    )


def save_on(
    ranks: Ranks, folder: Path, step: int, state: TrainingState, shards: ShardedModel | None
) -> None:
    """Save a checkpoint as a run does: rank 0 alone has what is bound to it, and its keys."""
    if ranks.is_rank_0:
        bound, keys = BoundRun(plan=plan()), {"noise": ["0102"]}
        save_checkpoint(folder, step, state, run=bound, generators=keys, shards=shards)
    elif shards is not None:
        save_checkpoint(folder, step, state, shards=shards)


def saved(ranks: Ranks, folder: Path, shard_size: int | None, config: OptimizerConfig) -> Contents:
    """Save a state after two steps, and return what is in it after two more."""
    state, shards = state_on(ranks, shard_size, config=config)
    take_steps(state, 2)
    save_on(ranks, folder, 2, state, shards)
    found = contents(state)
    take_steps(state, 2)
    return found


def restored(ranks: Ranks, path: Path, shard_size: int | None, config: OptimizerConfig) -> Contents:
    """Return what a state has that was another one before it was put back to a checkpoint."""
    state, shards = state_on(ranks, shard_size, seed=9, config=config)
    take_steps(state, 1)
    assert restore_checkpoint(path, state, shards=shards) == 2
    return contents(state)
