import numpy as np
import pytest
from scipy.stats import binom

from dpft.audit.one_run import epsilon_lower_bound, largest_epsilon_lower, p_value
from dpft.errors import InputError


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "published"),
    [
        # Steinke et al. 2023 (arXiv 2305.08846): the example of Appendix D; section 7, figure 11
        (1000, 100, 75, 1e-4, 0.673),
        (100_000, 1510, 1439, 1e-5, 2.675),
    ],
)
def test_reproduces_the_papers_bounds(canaries, guesses, correct, delta, published):
    bound = epsilon_lower_bound(canaries=canaries, guesses=guesses, correct=correct, delta=delta)
    assert bound == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize(
    ("canaries", "one", "ten"), [(100, 3.49, 2.90), (1000, 5.78, 5.14), (10_000, 7.83, 5.82)]
)
def test_the_largest_bound_is_that_of_all_canaries_guessed_right(canaries, one, ten):
    assert largest_epsilon_lower(canaries, delta=1e-5) == pytest.approx(one, abs=0.006)
    assert largest_epsilon_lower(canaries, delta=1e-5, choices=10) == pytest.approx(ten, abs=0.006)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_no_number_of_right_guesses_shows_more_than_the_largest_bound(delta):
    bounds = [
        epsilon_lower_bound(canaries=300, guesses=guesses, correct=guesses, delta=delta)
        for guesses in range(1, 301)
    ]
    assert max(bounds) <= largest_epsilon_lower(300, delta=delta)


@pytest.mark.parametrize("guesses", [1, 7, 40])
def test_without_delta_it_is_the_binomial_tail(guesses):
    # e^1 / (1 + e^1): how often randomized response at epsilon 1 tells the truth
    right = np.e / (1 + np.e)
    for correct in range(guesses + 1):
        found = p_value(canaries=50, guesses=guesses, correct=correct, epsilon=1.0, delta=0.0)
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
    found = p_value(canaries=50, guesses=guesses, correct=correct, epsilon=0.7, delta=1e-3)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_bound_is_itself_rejected_and_a_little_more_is_not():
    bound = epsilon_lower_bound(canaries=500, guesses=200, correct=150, delta=1e-5)
    at = [
        p_value(canaries=500, guesses=200, correct=150, epsilon=epsilon, delta=1e-5)
        for epsilon in (bound, bound + 1e-5)
    ]
    assert at[0] <= 0.05 < at[1]


def test_it_grows_with_right_guesses_and_falls_with_confidence_delta_and_canaries():
    def bound(correct=150, confidence=0.95, delta=1e-5, canaries=500):
        return epsilon_lower_bound(
            canaries=canaries, guesses=200, correct=correct, delta=delta, confidence=confidence
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
    assert epsilon_lower_bound(canaries=500, guesses=200, correct=100, delta=1e-5) == 0.0
    assert epsilon_lower_bound(canaries=500, guesses=0, correct=0, delta=1e-5) == 0.0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"canaries": 0, "guesses": 0, "correct": 0}, "canaries must be at least 1, got 0."),
        ({"guesses": 501}, "guesses must be between 0 and the number of canaries (500), got 501."),
        ({"correct": 201}, "correct must be between 0 and the number of guesses (200), got 201."),
        ({"correct": -1}, "correct must be between 0 and the number of guesses (200), got -1."),
        ({"delta": 1.0}, "delta must be in [0, 1), got 1.0; take that of the run's report."),
        ({"delta": float("nan")}, "delta must be in [0, 1), got nan; take that of the run's"),
        ({"confidence": 1.0}, "confidence must be in (0, 1), got 1.0; 0.95 is usual."),
    ],
)
def test_impossible_values_are_refused_in_one_sentence(wrong, sentence):
    values = {"canaries": 500, "guesses": 200, "correct": 150, "delta": 1e-5, "confidence": 0.95}
    with pytest.raises(InputError) as refused:
        epsilon_lower_bound(**{**values, **wrong})
    assert str(refused.value).startswith(sentence)


def test_choices_below_one_are_refused():
    with pytest.raises(InputError, match="choices must be at least 1, got 0"):
        largest_epsilon_lower(100, delta=0.0, choices=0)
