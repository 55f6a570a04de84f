import pytest

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.curve import EpsilonSoFar
from dpft.privacy.accounting.mechanism import SampledGaussian
from tests.privacy.test_plan import plan


def bound(steps: int) -> float:
    mechanism = SampledGaussian(noise_multiplier=1.5, sample_rate=0.25, steps=steps, delta=1e-3)
    return rdp.epsilon(mechanism).upper


@pytest.fixture(scope="module")
def curve():
    return EpsilonSoFar(plan(steps=100), whole=float("inf"))


@pytest.mark.parametrize("steps", [1, 45, 100])
def test_it_is_the_bound_of_the_steps_so_far(curve, steps):
    assert curve(steps) == pytest.approx(bound(steps), rel=1e-12)


def test_the_whole_plans_bound_covers_every_prefix():
    curve = EpsilonSoFar(plan(steps=4), whole=0.1)
    assert curve(4) == 0.1
    assert curve(3) <= 0.1
    assert curve(0) == 0


@pytest.mark.parametrize("steps", [101, 123])
def test_steps_beyond_the_plan_are_bounded_too(steps):
    """A resume that draws new noise takes steps again, and every one of them counts."""
    curve = EpsilonSoFar(plan(steps=100), whole=0.1)
    assert curve(steps) == pytest.approx(bound(steps), rel=1e-12)
