from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpft.errors import RunError
from dpft.models.losses import per_example_losses
from dpft.parallel.ranks import ALONE
from dpft.privacy.engine_results import MicroBatchResult
from dpft.training.loop import check_weights, sent_ahead, train
from dpft.training.optimizers import AdamW, SchedulerConfig, make_scheduler
from dpft.training.training_state import TrainingState
from tests.training.toy import tiny_model, training_set


class ScriptedEngine:
    """Hands out scripted draws and notes the order of what the loop asks for."""

    def __init__(self, draws):
        self.steps, self._draws, self.calls = len(draws), iter(draws), []
        self.steps_taken, self.model = 0, None

    def __enter__(self):
        self.calls.append("enter")
        return self

    def __exit__(self, *_):
        self.calls.append("exit")

    def draw(self, num_units):
        self.calls.append(f"draw from {num_units}")
        return next(self._draws)

    def accumulate(self, batch, rows_per_unit=1):
        losses = per_example_losses(self.model, batch)
        units = "" if rows_per_unit == 1 else f" in units of {rows_per_unit}"
        self.calls.append(f"accumulate {len(losses)}{units}")
        losses.sum().backward()
        return MicroBatchResult(losses=losses.detach(), norms=None)

    def finish_step(self):
        self.calls.append("finish")


class Hooks:
    """Notes when the loop asks it, among what the engine is asked."""

    def __init__(self, calls):
        self.calls = calls

    def begin_step(self, model, step):
        self.calls.append(f"begin {step}")

    def finish_gradient(self, model):
        self.calls.append("project")

    def begin_update(self, optimizer, step):
        self.calls.append(f"update {step}")


def run(engine, model=None, hooks=None, units=None):
    model = engine.model = model or tiny_model()
    optimizer = AdamW().make(model.parameters(), learning_rate=0.01, weight_decay=0.0)
    scheduler = make_scheduler(optimizer, SchedulerConfig(), steps=engine.steps)
    state = TrainingState(
        model=model, method=hooks or Hooks([]), optimizer=optimizer, scheduler=scheduler
    )
    seen = []
    steps = SimpleNamespace(ranks=ALONE, after_step=lambda state, engine, done: seen.append(done))
    train(state, replace(training_set(), units=units), engine, steps)
    return seen


def test_the_loop_reads_like_algorithm_1():
    engine = ScriptedEngine([[0, 1, 2, 3, 4], [], [7]])
    run(engine)
    assert engine.calls == [
        "enter",
        "draw from 12", "accumulate 4", "accumulate 1", "finish",
        "draw from 12", "finish",
        "draw from 12", "accumulate 1", "finish",
        "exit",
    ]  # fmt: skip


def test_a_method_is_asked_before_the_draw_and_after_the_private_gradient():
    engine = ScriptedEngine([[0], []])
    run(engine, hooks=Hooks(engine.calls))
    assert engine.calls == [
        "enter",
        "begin 0", "draw from 12", "accumulate 1", "finish", "project", "update 0",
        "begin 1", "draw from 12", "finish", "project", "update 1",
        "exit",
    ]  # fmt: skip


def test_a_draws_every_record_is_used_exactly_once():
    seen = run(ScriptedEngine([[0, 1, 2, 3, 4, 5, 6]]))
    assert seen[0].batch_size == 7
    assert sum(len(losses) for losses in seen[0].losses) == 7


def test_units_are_drawn_and_the_engine_is_told_how_many_rows_each_has():
    engine = ScriptedEngine([[0, 1, 2], [1]])
    (first, second) = run(engine, units=[[0, 3], [], [5, 6, 7]])
    assert engine.calls == [
        "enter",
        "draw from 3", "accumulate 3 in units of 3", "accumulate 2 in units of 2", "finish",
        "draw from 3", "finish",
        "exit",
    ]  # fmt: skip
    assert (first.batch_size, second.batch_size) == (3, 1)


def test_filler_rows_reach_the_engine_but_not_the_statistics():
    engine = ScriptedEngine([[0, 1]])
    (seen,) = run(engine, units=[[0, 3], [5]])
    assert "accumulate 4 in units of 2" in engine.calls
    (losses,) = seen.losses
    assert len(losses) == 3 and bool((losses > 0).all())


def test_the_model_trains_in_training_mode_and_ends_in_evaluation_mode():
    model = tiny_model().eval()
    modes = []
    engine = ScriptedEngine([[0]])
    engine.finish_step = lambda: modes.append(model.training)
    run(engine, model)
    assert modes == [True] and not model.training


def test_a_weight_that_is_not_finite_ends_the_run_and_is_named():
    model = tiny_model()
    check_weights(model, 1)
    with torch.no_grad():
        model.transformer.ln_f.bias[0] = float("inf")
    with pytest.raises(RunError, match=r"ln_f\.bias .* step 3") as error:
        check_weights(model, 3)
    assert error.value.exit_code == 1


def test_a_frozen_weight_that_is_moved_is_checked_and_one_that_is_not_is_left_alone():
    model = tiny_model()
    weight = model.transformer.h[0].attn.c_attn.weight.requires_grad_(False)
    with torch.no_grad():
        weight[0] = float("nan")
    check_weights(model, 1)
    weight.grad = torch.zeros_like(weight)
    with pytest.raises(RunError, match=r"c_attn\.weight"):
        check_weights(model, 1)


def test_the_next_micro_batch_is_sent_to_an_accelerator_before_one_is_used() -> None:
    told: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def to(self, device: torch.device) -> "Named":
            told.append(f"{self.name} sent")
            return self

    for batch in sent_ahead(map(Named, "abc"), torch.device("meta")):
        told.append(f"{batch.name} used")
    assert told == ["a sent", "b sent", "a used", "c sent", "b used", "c used"]
    assert list(sent_ahead([], torch.device("meta"))) == []
