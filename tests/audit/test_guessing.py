import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import binom, norm

from dpft.audit.guessing import (
    Outcome,
    best_lower_bound,
    confidence_of_each,
    count_right,
    epsilon_lower_bound,
    epsilon_lower_if_gaussian,
    find_contradiction,
    find_contradiction_independent,
    guess_counts,
    guess_outcomes,
    is_impossible,
    largest_accuracy,
    mu_lower_bound,
    p_value,
    p_value_of_epsilon,
)
from dpft.audit.trade_off import GaussianTradeOff, mechanism_trade_off
from dpft.privacy.accounting.gdp import gaussian_epsilon
from dpft.privacy.accounting.mechanism import SampledGaussian
from tests.audit.known_mechanisms import (
    MOST_WRONG,
    RUNS,
    ApproximateTradeOff,
    common_chance,
    gaussian,
    randomized_response,
    runs,
)
from tests.rejections import rejects
from tests.slowness import slow, slow_but


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "delta"), [(0.5, 0.0), *slow((1.0, 1e-5), (3.0, 1e-5))])
def test_the_bound_of_randomized_response_is_above_its_epsilon_in_at_most_one_of_twenty(eps, delta):
    bounds = [
        best_lower_bound(scores, included, delta=delta).epsilon_lower
        for scores, included in runs(randomized_response, eps, 200)
    ]
    assert sum(bound > eps for bound in bounds) <= MOST_WRONG


@pytest.mark.slow
def test_each_number_of_guesses_is_valid_by_itself_and_barely():
    wrong = np.zeros(10)
    for scores, included in runs(randomized_response, 1.0, 200):
        bound = best_lower_bound(scores, included, delta=0.0, confidence=0.5)
        # ten looks at confidence 1/2 are each at 95 %
        wrong += np.array(bound.epsilons) > 1.0
    assert wrong.max() <= MOST_WRONG
    assert wrong.max() > 20, "the test is that of the binomial, which is exact up to its steps"


@pytest.mark.slow
def test_a_gaussian_mechanism_of_mu_1_is_bounded_above_1_43():
    # epsilon 4.38 at delta 1e-5 (Dong et al. 2019, Corollary 2.13)
    bounds = [
        best_lower_bound(scores, included, delta=1e-5).epsilon_lower
        for scores, included in runs(gaussian, 1.0, 1000, count=20)
    ]
    assert 1.43 < np.mean(bounds) < 4.38


@pytest.mark.parametrize("canaries", [20, 100, 1000])
def test_perfect_scores_show_the_largest_bound_however_the_coins_fell(canaries):
    rng = np.random.default_rng(canaries)
    for _ in range(20):
        included = rng.random(canaries) < 0.5
        # far apart, but not evenly: the gap between the two groups is the widest
        scores = 100.0 * included + rng.random(canaries)
        bound = best_lower_bound(scores, included, delta=1e-5)
        assert bound.correct == bound.guesses == canaries
        assert bound.epsilon_lower == bound.largest_epsilon_lower


def test_it_reports_the_best_of_its_numbers_of_guesses_and_all_of_them():
    ((scores, included),) = runs(gaussian, 1.0, 1000, count=1)
    bound = best_lower_bound(scores, included, delta=1e-5, confidence=0.9, choices=4)
    guesses, epsilons = zip(*bound.curve, strict=True)
    assert guesses == tuple(sorted(guess_counts(1000, 4)))
    assert bound.epsilon_lower == max(epsilons) == dict(bound.curve)[bound.guesses]
    assert bound.epsilon_lower == epsilon_lower_bound(
        Outcome(canaries=1000, guesses=bound.guesses, correct=bound.correct),
        delta=1e-5,
        confidence=0.975,
    )
    assert bound.largest_epsilon_lower == epsilon_lower_bound(
        Outcome(canaries=1000, guesses=1000, correct=1000),
        delta=1e-5,
        confidence=confidence_of_each(0.9, 4),
    )
    assert (bound.canaries, bound.confidence, bound.choices) == (1000, 0.9, 4)


@pytest.mark.parametrize("canaries", [1, 2, 3, 10, 101, 1000])
@pytest.mark.parametrize("choices", [1, 2, 10])
def test_the_numbers_of_guesses_are_fixed_from_all_canaries_down(canaries, choices):
    counts = guess_counts(canaries, choices)
    assert counts[0] == canaries
    assert list(counts) == sorted(set(counts), reverse=True)
    assert 1 <= len(counts) <= choices
    assert min(counts) >= 1


def correct_guesses(scores, included, *, guessed_in, guessed_out):
    """Return how many guesses are right: "in" of the highest scores, "out" of the lowest."""
    right_in, right_out, _ = count_right(scores, included)
    return right_in[guessed_in] + right_out[guessed_out]


def test_guesses_fall_on_the_highest_and_the_lowest_scores():
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    included = np.array([True, False, True, False, True, False])
    for guessed_in, guessed_out, correct in [(1, 0, 1), (2, 0, 1), (0, 1, 1), (0, 2, 1), (3, 3, 4)]:
        found = correct_guesses(scores, included, guessed_in=guessed_in, guessed_out=guessed_out)
        assert found == correct


def test_the_order_of_the_canaries_changes_nothing():
    rng = np.random.default_rng(3)
    # whole numbers: many ties
    scores, included = rng.integers(0, 6, 200).astype(float), rng.random(200) < 0.5
    order = rng.permutation(200)
    assert guess_outcomes(scores, included) == guess_outcomes(scores[order], included[order])


def test_equal_scores_count_as_guessed_wrong_wherever_they_can_be():
    included = np.array([True, True, False, False])
    equal = correct_guesses(np.zeros(4), included, guessed_in=2, guessed_out=2)
    assert equal == 0
    # three guesses of two outs and two ins: one of them must be right
    assert correct_guesses(np.zeros(4), included, guessed_in=3, guessed_out=0) == 1


@pytest.mark.slow
def test_a_tie_never_shows_more_than_any_blind_way_of_breaking_it():
    rng = np.random.default_rng(4)
    for _ in range(50):
        included = rng.random(12) < 0.5
        scores = rng.integers(0, 3, 12).astype(float)
        for guessed_in, guessed_out in [(3, 3), (5, 2), (6, 6), (12, 0)]:
            counted = correct_guesses(
                scores, included, guessed_in=guessed_in, guessed_out=guessed_out
            )
            broken = [
                correct_guesses(
                    scores + 1e-6 * rng.random(12),
                    included,
                    guessed_in=guessed_in,
                    guessed_out=guessed_out,
                )
                for _ in range(10)
            ]
            assert counted <= min(broken)


@pytest.mark.parametrize(
    ("scores", "included", "key"),
    [
        ([0.0, float("nan"), 1.0], [True, False, True], "scores"),
        ([0.0, float("inf"), 1.0], [True, False, True], "scores"),
        ([0.0, None, 1.0], [True, False, True], "scores"),
        ([0.0, 1.0], [True, False, True], "scores"),
        ([0.0, 1.0], [1, 0], "included"),
        ([], np.array([], dtype=bool), "included"),
    ],
)
def test_a_canary_without_a_finite_score_or_a_coin_is_rejected(scores, included, key):
    with rejects(key):
        best_lower_bound(scores, included, delta=1e-5)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "published"),
    [
        # Steinke et al. 2023 (arXiv 2305.08846): the example of Appendix D; section 7, figure 11
        (1000, 100, 75, 1e-4, 0.673),
        (100_000, 1510, 1439, 1e-5, 2.675),
    ],
)
def test_reproduces_the_papers_bounds(canaries, guesses, correct, delta, published):
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)
    bound = epsilon_lower_bound(outcome, delta=delta)
    assert bound == pytest.approx(published, abs=1e-3)


def largest_epsilon_lower(canaries, delta, choices=1):
    """Return the bound of a guess about each canary, all of them right."""
    return epsilon_lower_bound(
        Outcome(canaries=canaries, guesses=canaries, correct=canaries),
        delta=delta,
        confidence=confidence_of_each(0.95, choices),
    )


@pytest.mark.parametrize(
    ("canaries", "one", "ten"), [(100, 3.49, 2.90), (1000, 5.78, 5.14), (10_000, 7.83, 5.82)]
)
def test_the_largest_bound_is_that_of_all_canaries_guessed_right(canaries, one, ten):
    assert largest_epsilon_lower(canaries, delta=1e-5) == pytest.approx(one, abs=0.006)
    assert largest_epsilon_lower(canaries, delta=1e-5, choices=10) == pytest.approx(ten, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("delta", slow_but([1e-3], [0.0, 1e-5, 1e-3]))
def test_no_number_of_right_guesses_shows_more_than_the_largest_bound(delta):
    bounds = [
        epsilon_lower_bound(Outcome(canaries=300, guesses=guesses, correct=guesses), delta=delta)
        for guesses in range(1, 301)
    ]
    assert max(bounds) <= largest_epsilon_lower(300, delta=delta)


@pytest.mark.parametrize("guesses", [1, 7, 40])
def test_without_delta_it_is_the_binomial_tail(guesses):
    # e^1 / (1 + e^1): how often randomized response at epsilon 1 tells the truth
    right = np.e / (1 + np.e)
    for correct in range(guesses + 1):
        outcome = Outcome(canaries=50, guesses=guesses, correct=correct)
        found = p_value_of_epsilon(outcome, 0.0)(1.0)
        assert found == pytest.approx(binom.sf(correct - 1, guesses, right), rel=1e-9)


@pytest.mark.parametrize(("guesses", "correct"), [(1, 1), (20, 13), (40, 40), (40, 0)])
def test_the_p_value_with_delta_is_that_of_appendix_d(guesses, correct):
    # the loop of the paper's listing
    right = 1 / (1 + np.exp(-0.7))
    steepest = total = 0.0
    for fewer in range(1, correct + 1):
        total += binom.pmf(correct - fewer, guesses, right)
        steepest = max(steepest, total / fewer)
    expected = min(1.0, binom.sf(correct - 1, guesses, right) + steepest * 1e-3 * 2 * 50)
    outcome = Outcome(canaries=50, guesses=guesses, correct=correct)
    found = p_value_of_epsilon(outcome, 1e-3)(0.7)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_bound_is_itself_rejected_and_a_little_more_is_not():
    outcome = Outcome(canaries=500, guesses=200, correct=150)
    bound = epsilon_lower_bound(outcome, delta=1e-5)
    at = [p_value_of_epsilon(outcome, 1e-5)(epsilon) for epsilon in (bound, bound + 1e-5)]
    assert at[0] <= 0.05 < at[1]


def test_it_grows_with_right_guesses_and_falls_with_confidence_delta_and_canaries():
    def bound(correct=150, confidence=0.95, delta=1e-5, canaries=500):
        return epsilon_lower_bound(
            Outcome(canaries=canaries, guesses=200, correct=correct),
            delta=delta,
            confidence=confidence,
        )

    for ascending in (
        [bound(correct=correct) for correct in range(201)],
        [bound(confidence=1 - doubt) for doubt in (1e-6, 1e-3, 0.05, 0.3)],
        [bound(delta=delta) for delta in (1e-2, 1e-3, 1e-5, 0.0)],
        [bound(canaries=canaries) for canaries in (100_000, 10_000, 1000, 200)],
    ):
        assert ascending == sorted(ascending)
        assert ascending[0] < ascending[-1]


def test_guesses_at_chance_show_nothing():
    for guesses, correct in [(0, 0), (200, 0), (200, 100)]:
        outcome = Outcome(canaries=500, guesses=guesses, correct=correct)
        assert epsilon_lower_bound(outcome, delta=1e-5) == 0.0
        assert mu_lower_bound(outcome) == 0.0
        assert epsilon_lower_if_gaussian(outcome, delta=1e-5) == 0.0


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"canaries": 0, "guesses": 0, "correct": 0}, "canaries"),
        ({"guesses": 501}, "guesses"),
        ({"correct": 201}, "correct"),
        ({"correct": -1}, "correct"),
        ({"delta": 1.0}, "delta"),
        ({"delta": float("nan")}, "delta"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_impossible_values_are_rejected(wrong, key):
    counts = {"canaries": 500, "guesses": 200, "correct": 150}
    values = {"delta": 1e-5, "confidence": 0.95}
    for test in (epsilon_lower_bound, epsilon_lower_if_gaussian):
        with rejects(key):
            test(
                Outcome(**{key: wrong.get(key, value) for key, value in counts.items()}),
                **{key: wrong.get(key, value) for key, value in values.items()},
            )


def largest_chance(mu, canaries, guesses, correct):
    """Return the largest chance of ``correct`` or more right guesses by linear programming.

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "canaries", "guesses"),
    slow_but([(1.5, 30, 8)], [(mu, *many) for mu in (0.5, 1.5) for many in ((12, 12), (30, 8))]),
)
def test_the_p_value_is_the_largest_chance_that_the_inequality_allows(canaries, guesses, mu):
    for correct in range(guesses // 2, guesses + 1):
        found = p_value(
            GaussianTradeOff(mu), Outcome(canaries=canaries, guesses=guesses, correct=correct)
        )
        expected = largest_chance(mu, canaries, guesses, correct)
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mu", slow_but([1.0], [0.3, 1.0, 3.0]))
def test_canaries_in_directions_of_their_own_stay_within_the_p_value(mu):
    # each is guessed right with a chance of Phi(mu / 2), independently
    for correct in range(101):
        exact = binom.sf(correct - 1, 100, ndtr(mu / 2))
        bound = p_value(GaussianTradeOff(mu), Outcome(canaries=100, guesses=100, correct=correct))
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
    assert (
        p_value(GaussianTradeOff(1.0), Outcome(canaries=1000, guesses=1000, correct=900)) >= chance
    )


@pytest.mark.parametrize("correct", [50, 80, 95, 100])
def test_a_p_value_is_the_least_chance_that_is_impossible(correct):
    outcome = Outcome(canaries=400, guesses=100, correct=correct)
    chance = p_value(GaussianTradeOff(0.8), outcome)
    for level in (0.5, 0.1, 0.05, 0.01):
        assert is_impossible(GaussianTradeOff(0.8), outcome, level) == (chance <= level)


def test_mu_is_the_largest_that_is_contradicted():
    outcome = Outcome(canaries=1000, guesses=200, correct=190)
    mu = mu_lower_bound(outcome)
    assert is_impossible(GaussianTradeOff(mu), outcome, 0.05)
    assert not is_impossible(GaussianTradeOff(mu + 1e-5), outcome, 0.05)
    eps = epsilon_lower_if_gaussian(outcome, delta=1e-5)
    assert eps == pytest.approx(gaussian_epsilon(mu, 1e-5), abs=1e-12)
    assert eps > epsilon_lower_bound(outcome, delta=1e-5)


@pytest.mark.slow
def test_mu_grows_with_right_guesses_and_falls_with_confidence():
    def mu(correct=180, confidence=0.95):
        outcome = Outcome(canaries=500, guesses=200, correct=correct)
        return mu_lower_bound(outcome, confidence=confidence)

    for ascending in (
        [mu(correct=correct) for correct in range(100, 201)],
        [mu(confidence=1 - doubt) for doubt in (1e-6, 1e-3, 0.05, 0.3)],
    ):
        assert ascending == sorted(ascending)
        assert ascending[0] < ascending[-1]


@pytest.mark.parametrize(
    ("eps", "guesses"), slow_but([(2.0, 30)], [(eps, n) for eps in (0.5, 2.0) for n in (30, 100)])
)
def test_the_lowest_curve_of_an_epsilon_covers_randomized_response(guesses, eps):
    curve = ApproximateTradeOff(epsilon=eps)
    for correct in range(guesses + 1):
        exact = binom.sf(correct - 1, guesses, np.exp(eps) / (1 + np.exp(eps)))
        bound = p_value(curve, Outcome(canaries=guesses, guesses=guesses, correct=correct))
        assert exact <= bound + 1e-12


PLANNED = GaussianTradeOff(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussians_epsilon_is_exceeded_in_at_most_one_of_twenty(mu):
    eps = gaussian_epsilon(mu, 1e-5)
    above = sum(
        best_lower_bound(scores, included, delta=1e-5, gaussian=True).epsilon_lower > eps
        for scores, included in runs(gaussian, mu, 200)
    )
    assert above <= MOST_WRONG


@pytest.mark.slow
def test_randomized_responses_epsilon_is_exceeded_by_its_own_curve_in_at_most_one_of_twenty():
    above = 0
    found: dict[object, float] = {}
    for scores, included in runs(randomized_response, 1.0, 200):
        for outcome in guess_outcomes(scores, included):
            if outcome not in found:
                found[outcome] = p_value(ApproximateTradeOff(epsilon=1.0), outcome)
        above += min(found[outcome] for outcome in guess_outcomes(scores, included)) <= 0.005
    assert above <= MOST_WRONG


@pytest.mark.slow
def test_a_gaussian_mechanism_of_mu_1_is_bounded_above_1_43_by_its_curve():
    bounds = [
        best_lower_bound(scores, included, delta=1e-5, gaussian=True)
        for scores, included in runs(gaussian, 1.0, 1000, count=20)
    ]
    assert 1.43 < np.mean([bound.epsilon_lower for bound in bounds]) < 4.38
    for bound in bounds:
        each = confidence_of_each(0.95, 10)
        mu = max(mu_lower_bound(outcome, confidence=each) for outcome in bound.outcomes)
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(bound.epsilon_lower, abs=1e-9)
        assert bound.epsilon_lower < bound.largest_epsilon_lower


@pytest.mark.slow
@pytest.mark.parametrize("find", [find_contradiction, find_contradiction_independent])
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
        shown.append(found.correct / found.canaries)
    # Phi(1) = 0.8413
    assert np.mean(shown) == pytest.approx(0.8413, abs=0.01)


def test_841_of_1000_right_rule_out_a_mu_below_1_84():
    # Phi(1) = 0.8413 of 1,000; Clopper-Pearson 0.8208; 2 Phi^-1(0.8208) = 1.837
    included = np.arange(1000) < 500
    scores = np.where(np.arange(1000) % 500 < 500 - 79, included, ~included) + 1e-4 * np.arange(
        1000
    )
    scores[0] = -1.0
    found = {
        mu: find_contradiction_independent(scores, included, GaussianTradeOff(mu))
        for mu in (1.83, 1.845)
    }
    assert {each.correct for each in found.values()} == {841}
    assert [each.contradicted for each in found.values()] == [True, False]


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: find_contradiction([0.0], [True], PLANNED, confidence=1.5), "confidence"),
        (
            lambda: find_contradiction_independent([0.0], [True], PLANNED, confidence=1.5),
            "confidence",
        ),
        (lambda: best_lower_bound([0.0], [True], delta=2.0), "delta"),
        (lambda: best_lower_bound([0.0], [True], delta=0.0, choices=0), "choices"),
    ],
)
def test_values_out_of_range_are_rejected(call, key):
    with rejects(key):
        call()
