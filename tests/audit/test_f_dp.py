import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import binom, norm

from dpft.audit.f_dp import (
    contradicts,
    epsilon_lower_any_curve,
    epsilon_lower_f_dp,
    mu_lower_bound,
    p_value,
)
from dpft.audit.one_run import epsilon_lower_bound
from dpft.audit.trade_off import ApproximateTradeOff, GaussianTradeOff
from dpft.errors import InputError
from dpft.privacy.accounting.gdp import gaussian_epsilon


def largest_chance(mu, canaries, guesses, correct):
    """Returns the largest chance of ``correct`` or more right guesses by linear programming.

    Over all distributions of the number of right guesses that satisfy the paper's inequality
    r_i <= 1 - f(h_{i-1}), i >= 1, whose right side is replaced by tangents of it.
    """
    numbers = np.arange(guesses + 1)
    rows, limits = [], []
    wrongs = norm.cdf(np.linspace(-6, 6, 400))
    tangents = 1 - ndtr(-norm.ppf(wrongs) - mu)
    slopes = np.exp(norm.ppf(wrongs) * -mu - mu**2 / 2)
    for least in range(1, guesses + 1):
        right = np.where(numbers >= least, numbers, 0) / canaries
        wrong = np.where(numbers >= least - 1, guesses - numbers, 0) / canaries
        rows += [right - slope * wrong for slope in slopes]
        limits += list(tangents - slopes * wrongs)
    found = linprog(
        -(numbers >= correct).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    return -found.fun


@pytest.mark.parametrize(("canaries", "guesses"), [(12, 12), (30, 8)])
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_the_p_value_is_the_largest_chance_that_the_inequality_allows(canaries, guesses, mu):
    for correct in range(guesses // 2, guesses + 1):
        found = p_value(GaussianTradeOff(mu), canaries=canaries, guesses=guesses, correct=correct)
        expected = largest_chance(mu, canaries, guesses, correct)
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_canaries_in_directions_of_their_own_stay_within_the_p_value(mu):
    # each is guessed right with a chance of Phi(mu / 2), independently
    for correct in range(101):
        exact = binom.sf(correct - 1, 100, ndtr(mu / 2))
        bound = p_value(GaussianTradeOff(mu), canaries=100, guesses=100, correct=correct)
        assert exact <= bound + 1e-12


def test_a_mechanism_that_leaks_by_a_common_chance_meets_the_p_value():
    # With a chance of 1 in 20, randomized response at epsilon 2.3 about all canaries, else
    # nothing: of a curve above the Gaussian one, and right 909 times in 1,000 in the mean then.
    epsilons = np.linspace(0, 2.3, 1000)
    share, right = 0.05, np.exp(2.3) / (1 + np.exp(2.3))
    deltas = share * (right - np.exp(epsilons) * (1 - right))
    gaussian = ndtr(-epsilons + 0.5) - np.exp(epsilons) * ndtr(-epsilons - 0.5)
    assert np.all(deltas <= gaussian), "so it is 1-Gaussian-DP"
    chance = share * binom.sf(899, 1000, right)
    assert chance > 0.03
    assert p_value(GaussianTradeOff(1.0), canaries=1000, guesses=1000, correct=900) >= chance


@pytest.mark.parametrize("correct", [50, 80, 95, 100])
def test_contradicting_is_a_p_value_at_the_level(correct):
    values = {"canaries": 400, "guesses": 100, "correct": correct}
    chance = p_value(GaussianTradeOff(0.8), **values)
    for confidence in (0.5, 0.9, 0.95, 0.99):
        assert contradicts(GaussianTradeOff(0.8), **values, confidence=confidence) == (
            chance <= 1 - confidence
        )


def test_mu_is_the_largest_that_is_contradicted():
    values = {"canaries": 1000, "guesses": 200, "correct": 190}
    mu = mu_lower_bound(**values)
    assert contradicts(GaussianTradeOff(mu), **values)
    assert not contradicts(GaussianTradeOff(mu + 1e-5), **values)
    eps = epsilon_lower_f_dp(**values, delta=1e-5)
    assert eps == pytest.approx(gaussian_epsilon(mu, 1e-5), abs=1e-12)
    assert eps > epsilon_lower_bound(**values, delta=1e-5)


def test_it_grows_with_right_guesses_and_falls_with_confidence():
    def mu(correct=180, confidence=0.95):
        return mu_lower_bound(canaries=500, guesses=200, correct=correct, confidence=confidence)

    for ascending in (
        [mu(correct=correct) for correct in range(100, 201)],
        [mu(confidence=1 - doubt) for doubt in (1e-6, 1e-3, 0.05, 0.3)],
    ):
        assert ascending == sorted(ascending)
        assert ascending[0] < ascending[-1]


def test_guesses_at_chance_show_nothing():
    for guesses, correct in [(0, 0), (200, 0), (200, 100)]:
        assert mu_lower_bound(canaries=500, guesses=guesses, correct=correct) == 0.0
        assert epsilon_lower_f_dp(canaries=500, guesses=guesses, correct=correct, delta=1e-5) == 0.0


@pytest.mark.parametrize("guesses", [30, 100])
@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_the_lowest_curve_of_an_epsilon_covers_randomized_response(guesses, eps):
    curve = ApproximateTradeOff(epsilon=eps)
    for correct in range(guesses + 1):
        exact = binom.sf(correct - 1, guesses, np.exp(eps) / (1 + np.exp(eps)))
        bound = p_value(curve, canaries=guesses, guesses=guesses, correct=correct)
        assert exact <= bound + 1e-12


def test_any_curve_shows_a_bound_that_does_not_fall_with_the_canaries_times_delta():
    values = {"canaries": 10_000, "guesses": 10_000, "correct": 10_000, "delta": 1e-5}
    # ln(1 / (0.05^(-1 / 10000) - 1)), that of delta 0
    assert epsilon_lower_any_curve(**values) == pytest.approx(8.113, abs=0.01)
    assert epsilon_lower_bound(**values) == pytest.approx(7.83, abs=0.01)


def test_impossible_values_are_refused():
    with pytest.raises(InputError, match="correct must be between 0"):
        mu_lower_bound(canaries=10, guesses=5, correct=6)
    with pytest.raises(InputError, match="confidence must be in"):
        contradicts(GaussianTradeOff(1.0), canaries=10, guesses=5, correct=5, confidence=0.0)
    with pytest.raises(InputError, match="delta must be in"):
        epsilon_lower_f_dp(canaries=10, guesses=5, correct=5, delta=-1e-5)
    with pytest.raises(InputError, match="delta must be in"):
        epsilon_lower_any_curve(canaries=10, guesses=5, correct=5, delta=1.5)
