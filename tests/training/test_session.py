import json
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dpft.errors import RunError
from dpft.methods.base import METHODS, MethodPhase
from dpft.privacy.ledger import read_ledger
from dpft.run_folder import KEYS
from dpft.training import training_run
from dpft.training.checkpoint import ResumePoint, checkpoints, read_checkpoint, save_checkpoint
from dpft.training.optimizers import AdamW
from dpft.training.training_config import TrainingConfig
from dpft.training.training_run import TrainingRun
from tests.rejections import rejects
from tests.training.toy import (
    plan,
    privacy,
    session,
    spent,
    tiny_model,
    train_ordinarily,
    train_privately,
)


def run_privately(folder, model=None, seed=1, **settings):
    model = model or tiny_model()
    own = session(folder, model, **settings)
    train_privately(own, plan(), privacy(seed), epsilon_after=spent)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def difference(first, second):
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.slow
def test_micro_batch_size_does_not_change_the_update(tmp_path):
    """Dropout off: masks are drawn per micro-batch, so they alone may differ."""
    weights = []
    for size in (1, 5):
        model = tiny_model()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        weights.append(run_privately(tmp_path / str(size), model, micro_batch_size=size))
    assert difference(*weights) < 1e-4


@pytest.mark.slow
def test_trust_rule_4_step_zero_is_saved_before_the_first_ledger_line(tmp_path, monkeypatch):
    seen = []
    save = training_run.save_checkpoint

    def spy(folder, step, *args, **kwargs):
        there = read_ledger(tmp_path / "ledger.jsonl").lines
        seen.append((step, kwargs["run"].ledger.lines, there))
        return save(folder, step, *args, **kwargs)

    monkeypatch.setattr(training_run, "save_checkpoint", spy)
    run_privately(tmp_path, checkpoint_every=2)
    # The first line is counted before it is written: its head is in the checkpoint of step 0.
    assert seen == [(0, 1, 0), (2, 3, 3), (4, 5, 5), (5, 6, 6)]


@pytest.mark.slow
def test_listeners_have_heard_of_every_step_that_a_checkpoint_has(tmp_path, monkeypatch):
    """A run killed right after a checkpoint goes on behind it, and tells no step before again."""
    heard, saved = [], []
    save = training_run.save_checkpoint

    def spy(folder, step, *args, **kwargs):
        saved.append((step, len(heard)))
        return save(folder, step, *args, **kwargs)

    listener = SimpleNamespace(begin=lambda step: None, after_step=heard.append)
    monkeypatch.setattr(training_run, "save_checkpoint", spy)
    own = replace(session(tmp_path, checkpoint_every=2), listeners=[listener])
    train_privately(own, plan(), privacy(), epsilon_after=spent)
    assert saved == [(0, 0), (2, 2), (4, 4), (5, 5)]


@pytest.mark.slow
def test_trust_rule_4_at_the_end_the_secret_generator_states_are_gone(tmp_path):
    states = []

    def save_model(_):
        (checkpoint,) = checkpoints(tmp_path / "private" / "checkpoints")
        states.append((checkpoint / KEYS).exists())
        assert not read_ledger(tmp_path / "ledger.jsonl").closed

    own = session(tmp_path)
    train_privately(own, plan(), privacy(), epsilon_after=spent, save_model=save_model)
    assert states == [True], "the final checkpoint comes before the model, closing after it"
    assert not list((tmp_path / "private").rglob(KEYS))


@pytest.mark.slow
def test_trust_rule_7_training_statistics_go_to_private_files_only(tmp_path):
    run_privately(tmp_path)
    private = tmp_path / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    files = [path for path in private.rglob("*") if path.is_file()]
    assert files and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    lines = [json.loads(line) for line in (private / "diagnostics.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "num_records": 12,
        "num_units": 12,
        "excluded_records": 0,
        "public_num_examples": 12,
    }
    assert [line["step"] for line in lines[1:]] == [1, 2, 3, 4, 5]
    named = {"batch_size", "clipped_fraction", "median_gradient_norm"}
    named |= {"signal_norm", "noise_norm", "signal_to_noise"}
    assert all(named <= set(line) for line in lines[1:])
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["ledger.jsonl"]


@pytest.mark.slow
def test_trust_rule_4_a_folder_with_a_ledger_is_refused(tmp_path):
    run_privately(tmp_path)
    with rejects():
        run_privately(tmp_path)


@pytest.mark.slow
def test_weights_that_stop_being_finite_end_the_run_with_the_step_counted(tmp_path):
    model = tiny_model()
    own = session(tmp_path, model)
    huge = plan(noise_multiplier=1e300)
    with pytest.raises(RunError, match="step 1"):
        train_privately(own, huge, privacy(), epsilon_after=spent)
    assert read_ledger(tmp_path / "ledger.jsonl").steps == 1


@pytest.mark.slow
def test_ordinary_training_lowers_the_loss_and_leaves_no_ledger(tmp_path):
    train_ordinarily(session(tmp_path), 40)
    lines = (tmp_path / "private" / "diagnostics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["mean_loss"] for line in lines[1:]]
    assert losses[-1] < losses[0] - 0.1
    assert not [line for line in lines if "signal" in line or "noise" in line]
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.slow
def test_a_method_readies_the_model_before_the_optimizer_asks_what_moves(tmp_path):
    own, calls = session(tmp_path), []

    class Noted(type(own.method)):
        def begin_step(self, model, step):
            calls.append(step)

        def moved_parameters(self, model):
            calls.append("moved")
            return super().moved_parameters(model)

    object.__setattr__(own, "method", Noted(name="full"))
    train_privately(own, plan(steps=2), privacy(), epsilon_after=spent)
    assert calls == [0, "moved", 0, 0, 1]


def prepared(method: str = "full", seed: int = 0) -> TrainingRun:
    chosen = METHODS.named(method)(name=method)
    settings = TrainingConfig(expected_batch_size=6, learning_rate=0.1)
    own = session(Path(), chosen.prepare(tiny_model(seed)))
    return replace(own, method=chosen, settings=settings)


@pytest.mark.slow
def test_a_run_begins_with_the_models_weights_and_an_optimizer_over_what_moves() -> None:
    """Of RGP the weights move, in the place of what trains."""
    own = prepared("rgp")
    state = own.initial_state()
    assert state.model is own.model and state.scheduler.last_epoch == 0
    (group,) = state.optimizer.param_groups
    moved = own.method.moved_parameters(own.model)
    assert [id(each) for each in group["params"]] == [id(each) for each in moved]
    assert not any(each.requires_grad for each in moved) and not state.optimizer.state


def test_a_phases_own_learning_rate_is_in_the_schedule() -> None:
    phase = MethodPhase(method="full", steps=5, learning_rate=0.3)
    state = replace(prepared(), phases=(phase,)).initial_state()
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.3)


def resume_point(folder: Path, saved: TrainingRun) -> ResumePoint:
    """A checkpoint after a step of all ones."""
    state = saved.initial_state()
    for parameter in saved.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    state.scheduler.step()
    path = save_checkpoint(folder / "checkpoints", 1, state)
    return ResumePoint(checkpoint=read_checkpoint(path), ledger=None)


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_checkpoints_weights_moments_and_rate(tmp_path: Path) -> None:
    saved, other = prepared(), prepared(seed=1)
    other.resume_point = resume_point(tmp_path, saved)
    state = other.initial_state()
    other.restore(state)
    for found, expected in zip(other.model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(found, expected)
        assert torch.equal(
            state.optimizer.state[found]["exp_avg"], torch.full_like(found, 1 - AdamW().beta1)
        )
    assert state.scheduler.last_epoch == 1
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 4 / 5)
