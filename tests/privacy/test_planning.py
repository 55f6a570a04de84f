from dataclasses import replace

import pytest

from dpft.errors import InputError
from dpft.privacy.planning import make_plan
from dpft.privacy.settings import DifferentialPrivacy

GIVEN = DifferentialPrivacy(name="dp", noise_multiplier=1.5, max_grad_norm=0.25)


def plan(config: DifferentialPrivacy, *, size: int = 400):
    return make_plan(config, num_examples=size, expected_batch_size=20, steps=7, method="full")


def test_a_plan_is_the_configuration_and_nothing_else() -> None:
    made = plan(GIVEN)
    assert (made.sample_rate, made.steps, made.delta) == (20 / 400, 7, 1 / 800)
    assert (made.noise_multiplier, made.calibration) == (1.5, None)
    (phase,) = made.phases
    assert (phase.method, phase.steps, phase.max_grad_norm) == ("full", 7, 0.25)
    assert phase.sensitivity == 0.25
    assert (made.sampler, made.neighboring_relation) == ("poisson", "add_or_remove_one")


def test_the_noise_is_calibrated_to_epsilon_by_the_accountant_asked_for() -> None:
    target = replace(GIVEN, eps=3.0, noise_multiplier=None, accountant="rdp", delta=1e-4)
    made = plan(target)
    assert made.delta == 1e-4
    assert made.calibration is not None
    assert made.calibration.accountant == "rdp"
    assert 2.98 <= made.calibration.epsilon <= 3.0


def test_a_delta_above_one_over_the_examples_needs_permission() -> None:
    large = replace(GIVEN, delta=0.01)
    with pytest.raises(InputError, match="privacy.delta must be at most .*allow_large_delta"):
        plan(large)
    assert plan(replace(large, allow_large_delta=True)).delta == 0.01
    assert plan(replace(GIVEN, delta=1 / 400)).delta == 1 / 400
