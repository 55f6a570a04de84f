import numpy as np
import pytest

from dpft.audit.guessing import (
    best_lower_bound,
    correct_guesses,
    guess_counts,
    guess_outcomes,
)
from dpft.audit.one_run import epsilon_lower_bound, largest_epsilon_lower
from dpft.errors import InputError
from tests.audit.known_mechanisms import MOST_WRONG, gaussian, randomized_response, runs
from tests.slowness import slow


@pytest.mark.parametrize(("eps", "delta"), [(0.5, 0.0), *slow((1.0, 1e-5), (3.0, 1e-5))])
def test_the_bound_of_randomized_response_is_above_its_epsilon_in_at_most_one_of_twenty(eps, delta):
    bounds = [
        best_lower_bound(scores, included, delta=delta).epsilon_lower
        for scores, included in runs(randomized_response, eps, 200)
    ]
    assert sum(bound > eps for bound in bounds) <= MOST_WRONG


def test_each_number_of_guesses_is_valid_by_itself_and_barely():
    wrong = np.zeros(10)
    for scores, included in runs(randomized_response, 1.0, 200):
        bound = best_lower_bound(scores, included, delta=0.0, confidence=0.5)
        # ten looks at confidence 1/2 are each at 95 %
        wrong += np.array(bound.epsilons) > 1.0
    assert wrong.max() <= MOST_WRONG
    assert wrong.max() > 20, "the test is that of the binomial, which is exact up to its steps"


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
        canaries=1000, guesses=bound.guesses, correct=bound.correct, delta=1e-5, confidence=0.975
    )
    assert bound.largest_epsilon_lower == largest_epsilon_lower(
        1000, delta=1e-5, confidence=0.9, choices=4
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


def test_guesses_fall_on_the_highest_and_the_lowest_scores():
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    included = np.array([True, False, True, False, True, False])
    for guessed_in, guessed_out, correct in [(1, 0, 1), (2, 0, 1), (0, 1, 1), (0, 2, 1), (3, 3, 4)]:
        outcome = correct_guesses(scores, included, guessed_in=guessed_in, guessed_out=guessed_out)
        assert (outcome.guesses, outcome.correct) == (guessed_in + guessed_out, correct)


def test_the_order_of_the_canaries_changes_nothing():
    rng = np.random.default_rng(3)
    # whole numbers: many ties
    scores, included = rng.integers(0, 6, 200).astype(float), rng.random(200) < 0.5
    order = rng.permutation(200)
    assert guess_outcomes(scores, included) == guess_outcomes(scores[order], included[order])


def test_equal_scores_count_as_guessed_wrong_wherever_they_can_be():
    included = np.array([True, True, False, False])
    equal = correct_guesses(np.zeros(4), included, guessed_in=2, guessed_out=2)
    assert equal.correct == 0
    # three guesses of two outs and two ins: one of them must be right
    assert correct_guesses(np.zeros(4), included, guessed_in=3, guessed_out=0).correct == 1


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
                ).correct
                for _ in range(10)
            ]
            assert counted.correct <= min(broken)


@pytest.mark.parametrize(
    ("scores", "included", "sentence"),
    [
        ([0.0, float("nan"), 1.0], [True, False, True], "the score of canary 1 is nan"),
        ([0.0, float("inf"), 1.0], [True, False, True], "the score of canary 1 is inf"),
        ([0.0, None, 1.0], [True, False, True], "the score of canary 1 is nan"),
        ([0.0, 1.0], [True, False, True], "there are 2 scores of 3 canaries"),
        ([0.0, 1.0], [1, 0], "the coins must be a row of at least one boolean"),
        ([], np.array([], dtype=bool), "the coins must be a row of at least one boolean"),
    ],
)
def test_a_canary_without_a_finite_score_or_a_coin_is_refused(scores, included, sentence):
    with pytest.raises(InputError) as refused:
        best_lower_bound(scores, included, delta=1e-5)
    assert str(refused.value).startswith(sentence)


def test_more_guesses_than_canaries_are_refused():
    with pytest.raises(InputError, match=r"guessed_in \(2\) and guessed_out \(1\) must be"):
        correct_guesses([0.0, 1.0], [True, False], guessed_in=2, guessed_out=1)
