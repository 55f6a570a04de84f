import pytest

from dpft.errors import InputError
from dpft.methods.base import MethodPhase
from dpft.training.optimizers import (
    learning_rate_factor,
    learning_rate_of,
)
from tests.training.toy import take_steps, tiny_model, training_state

TWO_PHASES = (
    MethodPhase(method="full", steps=2),
    MethodPhase(method="bitfit", steps=2, learning_rate=1.0),
)


def test_each_phase_has_its_learning_rate_times_the_schedules_factor():
    state = training_state(tiny_model(), steps=4, factor=learning_rate_factor(TWO_PHASES, 0.1))
    rates = []
    for _ in range(4):
        rates.append(state.optimizer.param_groups[0]["lr"])
        take_steps(state, 1)
    assert rates == pytest.approx([0.1 * 1, 0.1 * 0.75, 1.0 * 0.5, 1.0 * 0.25])
    assert [learning_rate_of(state, step) for step in (1, 2, 3, 4)] == pytest.approx(rates)


def test_without_a_rate_of_its_own_no_phase_changes_the_schedule():
    assert learning_rate_factor(TWO_PHASES[:1], 0.0) is None


def test_a_rate_of_a_phase_beside_a_rate_of_zero_is_refused():
    with pytest.raises(InputError, match="train.learning_rate must be positive"):
        learning_rate_factor(TWO_PHASES, 0.0)
