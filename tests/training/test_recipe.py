"""What steps are taken with, as it is before the next of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpft.errors import StateError
from dpft.methods.base import METHODS, MethodPhase
from dpft.training.checkpoint import read_checkpoint, save_checkpoint
from dpft.training.optimizers import AdamW, SchedulerConfig
from dpft.training.recipe import Recipe, prepare_training_state
from dpft.training.resume import ResumePoint
from dpft.training.training_config import TrainingConfig
from tests.training.toy import tiny_model, training_set


def recipe(method: str = "full", seed: int = 0) -> Recipe:
    chosen = METHODS.named(method)(name=method)
    return Recipe(
        model=chosen.prepare(tiny_model(seed)),
        method=chosen,
        phases=(),
        training_set=training_set(),
        settings=TrainingConfig(expected_batch_size=6, learning_rate=0.1),
        optimizer=AdamW(),
        scheduler=SchedulerConfig(name="linear"),
        num_examples=12,
    )


def test_the_batch_size_is_that_of_the_settings() -> None:
    assert recipe().batch_size == 6


def test_a_run_begins_with_the_models_weights_and_an_optimizer_over_what_moves() -> None:
    """Of RGP the weights move, in the place of what trains."""
    own = recipe("rgp")
    state = prepare_training_state(own, 5, None)
    assert state.model is own.model and state.scheduler.last_epoch == 0
    (group,) = state.optimizer.param_groups
    moved = own.method.moved_parameters(own.model)
    assert [id(each) for each in group["params"]] == [id(each) for each in moved]
    assert not any(each.requires_grad for each in moved) and not state.optimizer.state


def test_a_phases_own_learning_rate_is_in_the_schedule() -> None:
    phase = MethodPhase(method="full", steps=5, learning_rate=0.3)
    state = prepare_training_state(replace(recipe(), phases=(phase,)), 5, None)
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.3)


def resume_point(folder: Path, saved: Recipe) -> ResumePoint:
    """A checkpoint after a step of all ones."""
    state = prepare_training_state(saved, 5, None)
    for parameter in saved.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    state.scheduler.step()
    path = save_checkpoint(folder / "checkpoints", 1, state)
    return ResumePoint(checkpoint=read_checkpoint(path), ledger=None)


def test_a_run_that_goes_on_has_the_checkpoints_weights_moments_and_rate(tmp_path: Path) -> None:
    saved, other = recipe(), recipe(seed=1)
    state = prepare_training_state(other, 5, resume_point(tmp_path, saved))
    for found, expected in zip(other.model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(found, expected)
        assert torch.equal(
            state.optimizer.state[found]["exp_avg"], torch.full_like(found, 1 - AdamW().beta1)
        )
    assert state.scheduler.last_epoch == 1
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 4 / 5)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    point = resume_point(tmp_path, recipe())
    with pytest.raises(StateError):
        prepare_training_state(recipe("lora"), 5, point)
