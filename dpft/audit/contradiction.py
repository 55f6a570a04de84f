"""The f-DP tests at their best over a fixed list of numbers of guesses (``dpft.audit.guessing``).

Two questions are asked of the same scores: how large a Gaussian mu they rule out, beside the
report's epsilon; and whether they are possible at all under the curve of what was planned, which
finds a mechanism that is not the one accounted for even where its epsilon is not exceeded.
"""

from dataclasses import dataclass

from numpy.typing import ArrayLike

from dpft.audit.f_dp import epsilon_lower_f_dp, mu_lower_bound, p_value
from dpft.audit.guessing import CHOICES, LowerBound, best_of, guess_outcomes
from dpft.audit.outcome import Outcome, check_delta, confidence_of_each
from dpft.audit.trade_off import TradeOff


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Whether an audit's outcomes are possible under a trade-off curve.

    Attributes:
        contradicted: Whether they say, in ``confidence``, that the mechanism is not of this curve.
        p_value: An upper bound of the chance of an outcome as telling as the most telling one, the
            looks at all numbers of guesses paid for; at most 1.
        guesses: How many guesses the most telling outcome had.
        correct: How many of these were right.
        canaries: How many canaries there were.
        confidence: As asked for.
        choices: At how many numbers of guesses was looked.
    """

    contradicted: bool
    p_value: float
    guesses: int
    correct: int
    canaries: int
    confidence: float
    choices: int


def best_lower_bound_f_dp(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    choices: int = CHOICES,
) -> LowerBound:
    """Returns the largest lower bound of a Gaussian mechanism's epsilon over numbers of guesses.

    Args:
        scores: One for each canary, shape (m,), higher where it is more likely included.
        included: Its coin, shape (m,), of booleans.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: How sure the bound is to be, in (0, 1), the choice among ``choices`` paid for.
        choices: Length of the list of numbers of guesses.

    Guarantees:
        As ``f_dp.epsilon_lower_f_dp``, for the largest of the list.

    Raises:
        InputError: A canary has no finite score or no coin, or a value is out of range.
    """
    check_delta(delta)
    each = confidence_of_each(confidence, choices)

    def bound(outcome: Outcome) -> float:
        return epsilon_lower_f_dp(
            canaries=outcome.canaries,
            guesses=outcome.guesses,
            correct=outcome.correct,
            delta=delta,
            confidence=each,
        )

    outcomes = guess_outcomes(scores, included, choices=choices)
    canaries = outcomes[0].canaries
    all_right = Outcome(canaries=canaries, guesses=canaries, correct=canaries)
    return best_of(
        outcomes, bound, confidence=confidence, choices=choices, largest=bound(all_right)
    )


def best_mu_lower_bound(
    outcomes: tuple[Outcome, ...], *, confidence: float = 0.95, choices: int = CHOICES
) -> float:
    """Returns the largest Gaussian mu that some of the outcomes contradict, 0 if none does.

    Args:
        outcomes: Those of a ``LowerBound``, or of ``guess_outcomes``.
        confidence: How sure the bound is to be, in (0, 1), the choice paid for.
        choices: At how many numbers of guesses was looked.

    Raises:
        InputError: The confidence is out of range.
    """
    each = confidence_of_each(confidence, choices)
    return max(
        mu_lower_bound(
            canaries=outcome.canaries,
            guesses=outcome.guesses,
            correct=outcome.correct,
            confidence=each,
        )
        for outcome in outcomes
    )


def find_contradiction(
    scores: ArrayLike,
    included: ArrayLike,
    trade_off: TradeOff,
    *,
    confidence: float = 0.95,
    choices: int = CHOICES,
) -> Contradiction:
    """Returns whether the scores are possible under a trade-off curve, the plan's for instance.

    Args:
        scores: As in ``best_lower_bound_f_dp``.
        included: As there.
        trade_off: The curve of the mechanism, or a lower bound of it.
        confidence: As there.
        choices: As there.

    Guarantees:
        A mechanism whose curve lies nowhere below ``trade_off`` is contradicted with a probability
        of at most ``1 - confidence``.

    Raises:
        InputError: A canary has no finite score or no coin, or a value is out of range.
    """
    confidence_of_each(confidence, choices)
    outcomes = guess_outcomes(scores, included, choices=choices)
    chances = [
        p_value(
            trade_off,
            canaries=outcome.canaries,
            guesses=outcome.guesses,
            correct=outcome.correct,
        )
        for outcome in outcomes
    ]
    least = min(chances)
    telling = outcomes[chances.index(least)]
    chance = min(1.0, choices * least)
    return Contradiction(
        contradicted=chance <= 1 - confidence,
        p_value=chance,
        guesses=telling.guesses,
        correct=telling.correct,
        canaries=telling.canaries,
        confidence=confidence,
        choices=choices,
    )
