"""How often a test of membership is right: against the mechanism that meets the bound."""

import doctest
import math
from fractions import Fraction
from itertools import product

import pytest

from dpft.privacy.accounting import membership, rdp
from dpft.privacy.accounting.gdp import gaussian_epsilon
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.membership import least_error, most_right, shown_epsilon
from tests.slowness import slow_but

SETTINGS = list(product((0.0, 1e-9, 0.3, 1.0, 3.0, 7.9981, 12.5), (0.0, 1e-5, 0.00137, 0.3)))


def worst_pair(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """Returns the chances of four outputs with and without the unit (arXiv 1311.0776, Figure 2)."""
    kept = (1 - delta) / (1 + math.exp(epsilon))
    likely = kept * math.exp(epsilon)
    return [(delta, 0.0), (likely, kept), (kept, likely), (0.0, delta)]


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_the_bound_is_the_error_of_the_best_test_of_the_worst_mechanism(
    epsilon: float, delta: float
) -> None:
    pair = worst_pair(epsilon, delta)
    best = sum(max(with_unit, without) for with_unit, without in pair) / 2
    assert float(1 - least_error(epsilon, delta)) == pytest.approx(best, rel=1e-12)
    advantage = (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)
    assert float(1 - 2 * least_error(epsilon, delta)) == pytest.approx(advantage, abs=1e-14)


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_the_printed_percentage_is_above_the_bound_and_below_always(
    epsilon: float, delta: float
) -> None:
    printed = Fraction(most_right(epsilon, delta))
    bound = 100 - 100 * Fraction(least_error(epsilon, delta))
    assert bound <= printed < 100
    assert printed - bound <= max((100 - bound) / 10, Fraction(0))


def test_where_the_bound_tells_nothing_there_is_no_percentage() -> None:
    assert [most_right(epsilon, 1e-5) for epsilon in (14.0, 1e9, math.inf)] == [None] * 3
    assert most_right(1.0, 1.0) is None


def test_the_examples_of_the_module_hold() -> None:
    failed, tried = doctest.testmod(membership)
    assert tried and not failed


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    slow_but(
        [*product([0.3, 4.0], [1e-4, 1.0], [1, 300], [1e-9, 1e-2]), (0.6, 0.02, 3, 1e-5)],
        product([0.3, 0.6, 1.0, 4.0], [1e-4, 0.02, 0.5, 1.0], [1, 3, 300], [1e-9, 1e-5, 1e-2]),
    ),
)
def test_what_a_test_shows_is_not_above_what_an_accountant_bounds(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    shown = shown_epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=delta)
    mechanism = SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=delta)
    bound = rdp.epsilon(mechanism).upper
    assert bound is not None
    assert 0 <= shown <= bound


@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_without_sampling_a_test_shows_nearly_all(steps: int) -> None:
    """The sum of all steps is then a Gaussian mechanism whose epsilon is known."""
    noise = 2.0 * math.sqrt(steps)
    shown = shown_epsilon(noise_multiplier=noise, sample_rate=1.0, steps=steps, delta=1e-5)
    assert shown == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-2)
