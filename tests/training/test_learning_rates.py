import pytest

from dpft.errors import InputError
from dpft.methods.base import MethodPhase
from dpft.training.optimizers import (
    AdamW,
    SchedulerConfig,
    learning_rate_factor,
    learning_rate_of,
    make_scheduler,
)
from dpft.training.training_state import TrainingState
from tests.training.toy import tiny_model

TWO_PHASES = (
    MethodPhase(method="full", steps=2),
    MethodPhase(method="bitfit", steps=2, learning_rate=1.0),
)


def test_each_phase_has_its_learning_rate_times_the_schedules_factor():
    model = tiny_model()
    optimizer = AdamW().make(model.parameters(), learning_rate=0.1, weight_decay=0.0)
    scheduler = make_scheduler(
        optimizer,
        SchedulerConfig(name="linear"),
        steps=4,
        factor=learning_rate_factor(TWO_PHASES, 0.1),
    )
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1 * 1, 0.1 * 0.75, 1.0 * 0.5, 1.0 * 0.25])
    training_state = TrainingState(model=model, optimizer=optimizer, scheduler=scheduler)
    assert [learning_rate_of(training_state, step) for step in (1, 2, 3, 4)] == pytest.approx(rates)


def test_without_a_rate_of_its_own_no_phase_changes_the_schedule():
    assert learning_rate_factor(TWO_PHASES[:1], 0.0) is None


def test_a_rate_of_a_phase_beside_a_rate_of_zero_is_refused():
    with pytest.raises(InputError, match="train.learning_rate must be positive"):
        learning_rate_factor(TWO_PHASES, 0.0)
