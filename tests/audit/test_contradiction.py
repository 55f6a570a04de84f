import numpy as np
import pytest

from dpft.audit.contradiction import (
    best_lower_bound_f_dp,
    best_mu_lower_bound,
    find_contradiction,
)
from dpft.audit.f_dp import epsilon_lower_any_curve
from dpft.audit.guessing import guess_outcomes
from dpft.audit.independent import (
    accuracy_lower_bound,
    find_contradiction_independent,
    largest_accuracy,
    mu_lower_bound_independent,
)
from dpft.audit.trade_off import GaussianTradeOff, mechanism_trade_off
from dpft.errors import InputError
from dpft.privacy.accounting.gdp import gaussian_epsilon
from dpft.privacy.accounting.mechanism import SampledGaussian
from tests.audit.known_mechanisms import (
    MOST_WRONG,
    RUNS,
    common_chance,
    gaussian,
    randomized_response,
    runs,
)
from tests.slowness import slow_but

PLANNED = GaussianTradeOff(1.0)


@pytest.mark.parametrize("mu", slow_but([2.0], [0.5, 2.0]))
def test_a_gaussians_epsilon_is_exceeded_in_at_most_one_of_twenty(mu):
    eps = gaussian_epsilon(mu, 1e-5)
    above = sum(
        best_lower_bound_f_dp(scores, included, delta=1e-5).epsilon_lower > eps
        for scores, included in runs(gaussian, mu, 200)
    )
    assert above <= MOST_WRONG


def test_randomized_responses_epsilon_is_exceeded_by_its_own_curve_in_at_most_one_of_twenty():
    above = 0
    found: dict[object, float] = {}
    for scores, included in runs(randomized_response, 1.0, 200):
        for outcome in guess_outcomes(scores, included):
            if outcome not in found:
                found[outcome] = epsilon_lower_any_curve(
                    canaries=outcome.canaries,
                    guesses=outcome.guesses,
                    correct=outcome.correct,
                    delta=0.0,
                    confidence=0.995,
                )
        above += max(found[outcome] for outcome in guess_outcomes(scores, included)) > 1.0
    assert above <= MOST_WRONG


def test_a_gaussian_mechanism_of_mu_1_is_bounded_above_1_43():
    bounds = [
        best_lower_bound_f_dp(scores, included, delta=1e-5)
        for scores, included in runs(gaussian, 1.0, 1000, count=20)
    ]
    assert 1.43 < np.mean([bound.epsilon_lower for bound in bounds]) < 4.38
    for bound in bounds:
        mu = best_mu_lower_bound(bound.outcomes)
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(bound.epsilon_lower, abs=1e-9)
        assert bound.epsilon_lower < bound.largest_epsilon_lower


@pytest.mark.parametrize(
    "find",
    slow_but(
        [find_contradiction_independent], [find_contradiction, find_contradiction_independent]
    ),
)
def test_the_planned_mechanism_is_contradicted_in_at_most_one_of_twenty(find):
    found = [
        find(scores, included, PLANNED).contradicted
        for scores, included in runs(gaussian, 1.0, 200)
    ]
    assert sum(found) <= MOST_WRONG


def test_half_the_noise_is_not_the_planned_mechanism():
    shown = []
    for scores, included in runs(gaussian, 2.0, 1000, count=20):
        found = find_contradiction_independent(scores, included, PLANNED)
        assert found.contradicted
        assert found.p_value < 1e-6
        shown.append(mu_lower_bound_independent(canaries=found.canaries, correct=found.correct))
    assert 1.8 < np.mean(shown) < 2.0


def test_accuracy_alone_shows_a_mu_of_1_84_for_one_of_2():
    # Phi(1) = 0.8413 of 1,000; Clopper-Pearson 0.8208; 2 Phi^-1(0.8208)
    assert mu_lower_bound_independent(canaries=1000, correct=841) == pytest.approx(1.84, abs=0.005)


@pytest.mark.slow
def test_a_common_chance_is_why_independence_is_assumed():
    # 1-Gaussian-DP (test_f_dp), yet in one run of 20 it is right about nearly all canaries: any
    # test that contradicted these runs at 99 % would be wrong too often.
    general, independent = 0, 0
    for scores, included in runs(common_chance, 0.05, 2.3, 400):
        general += find_contradiction(scores, included, PLANNED, confidence=0.99).contradicted
        independent += find_contradiction_independent(
            scores, included, PLANNED, confidence=0.99
        ).contradicted
    assert general <= RUNS * 0.02
    assert independent > RUNS * 0.03


def test_a_doubled_rate_is_found_against_the_curve_of_the_plan():
    plan = SampledGaussian(noise_multiplier=1.0, sample_rate=0.05, steps=100, delta=1e-5)
    doubled = SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=100, delta=1e-5)
    rng = np.random.default_rng(5)

    def scores_of(mechanism):
        included = rng.random(1000) < 0.5
        joined = rng.random((1000, mechanism.steps)) < mechanism.sample_rate
        seen = rng.normal(size=joined.shape) + joined * included[:, None]
        # the likelihood ratio of each step, the best test there is
        ratio = np.log1p(mechanism.sample_rate * np.expm1(seen - 0.5))
        return ratio.sum(axis=1), included

    curve = mechanism_trade_off(plan)
    assert not find_contradiction_independent(*scores_of(plan), curve).contradicted
    assert find_contradiction_independent(*scores_of(doubled), curve).contradicted
    assert largest_accuracy(curve) < largest_accuracy(mechanism_trade_off(doubled))


def test_a_contradiction_names_the_most_telling_number_of_guesses():
    ((scores, included),) = runs(gaussian, 6.0, 1000, count=1)
    found = find_contradiction(scores, included, PLANNED)
    assert found.contradicted
    assert found.p_value <= 0.05
    assert (found.canaries, found.confidence, found.choices) == (1000, 0.95, 10)
    assert (found.guesses, found.correct) in {
        (outcome.guesses, outcome.correct) for outcome in guess_outcomes(scores, included)
    }


def test_accuracy_at_the_edges():
    assert accuracy_lower_bound(canaries=10, correct=0) == 0.0
    assert accuracy_lower_bound(canaries=10, correct=10) == pytest.approx(0.05**0.1)
    assert mu_lower_bound_independent(canaries=10, correct=5) == 0.0
    assert largest_accuracy(GaussianTradeOff(0.0)) == pytest.approx(0.5)


def test_impossible_values_are_refused():
    with pytest.raises(InputError, match="correct must be between 0"):
        accuracy_lower_bound(canaries=10, correct=11)
    with pytest.raises(InputError, match="confidence must be in"):
        find_contradiction([0.0], [True], PLANNED, confidence=1.5)
    with pytest.raises(InputError, match="confidence must be in"):
        find_contradiction_independent([0.0], [True], PLANNED, confidence=1.5)
    with pytest.raises(InputError, match="delta must be in"):
        best_lower_bound_f_dp([0.0], [True], delta=2.0)
