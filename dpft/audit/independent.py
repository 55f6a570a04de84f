"""The sharpest test of how often guesses are right, for canaries whose signals do not mix.

A curve alone allows a mechanism to leak by common chance: to tell nothing in 19 of 20 trainings and
much about every canary in the twentieth. So 841 right guesses of 1,000 rule out a Gaussian mu of no
more than 0.68 (``dpft.audit.f_dp``), although no such mechanism was ever meant. DP-SGD adds noise
that is independent in every direction. Where, moreover, each canary moves the weights in a
direction of its own (crafted gradients, each along another parameter, or random directions among
very many parameters), what is seen of one canary says nothing about another's coin. The coins then
are independent given all that is seen, each is guessed right with a probability of at most

    a = 1 - alpha, where f(alpha) = alpha   (Phi(mu / 2) for a Gaussian curve),

and the number of right guesses, when all coins are guessed, is no larger than a binomial one of m
throws of chance a. The same 841 of 1,000 show mu >= 1.84.

What it assumes beyond ``one_run``: that. Guesses about only some of the canaries are not bounded by
it, since the surest would be chosen.

>>> round(mu_lower_bound_independent(canaries=1000, correct=841), 2)
1.84
"""

from numpy.typing import ArrayLike
from scipy.special import betainc, betaincinv, ndtri

from dpft.audit.contradiction import Contradiction
from dpft.audit.guessing import guess_outcomes
from dpft.audit.outcome import Outcome, check_confidence
from dpft.audit.trade_off import TradeOff

HALVINGS = 60


def accuracy_lower_bound(*, canaries: int, correct: int, confidence: float = 0.95) -> float:
    """Returns the least chance of a right guess that the outcome allows (Clopper-Pearson).

    Args:
        canaries: Number of canaries, the coin of each of which was guessed.
        correct: Number of guesses that were right.
        confidence: How sure the bound is to be, in (0, 1).

    Raises:
        InputError: No guessing comes to these numbers, or confidence is out of range.
    """
    check_confidence(confidence)
    Outcome(canaries=canaries, guesses=canaries, correct=correct)
    if correct == 0:
        return 0.0
    return float(betaincinv(correct, canaries - correct + 1, 1 - confidence))


def mu_lower_bound_independent(*, canaries: int, correct: int, confidence: float = 0.95) -> float:
    """Returns the largest mu of Gaussian curves that the accuracy contradicts; 0 if it does none.

    Args:
        canaries: As in ``accuracy_lower_bound``.
        correct: As there.
        confidence: As there.

    Guarantees:
        Canaries that do not mix, of a mechanism that is mu-Gaussian-DP in each, get a bound above
        mu with a probability of at most ``1 - confidence``.

    Raises:
        InputError: No guessing comes to these numbers, or confidence is out of range.
    """
    accuracy = accuracy_lower_bound(canaries=canaries, correct=correct, confidence=confidence)
    return float(2 * ndtri(accuracy)) if accuracy > 0.5 else 0.0


def largest_accuracy(trade_off: TradeOff) -> float:
    """Returns how often, at most, the coin of one canary can be guessed right under a curve.

    >>> from dpft.audit.trade_off import GaussianTradeOff
    >>> round(largest_accuracy(GaussianTradeOff(1.0)), 4)  # Phi(1/2)
    0.6915
    """
    low, high = 0.0, 0.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if trade_off(middle) > middle else (low, middle)
    return 1 - low


def find_contradiction_independent(
    scores: ArrayLike, included: ArrayLike, trade_off: TradeOff, *, confidence: float = 0.95
) -> Contradiction:
    """Returns whether the accuracy of guesses about all canaries is possible under a curve.

    Args:
        scores: One for each canary, shape (m,), higher where it is more likely included.
        included: Its coin, shape (m,), of booleans.
        trade_off: The curve of the mechanism, or a lower bound of it.
        confidence: How sure the answer is to be, in (0, 1).

    Guarantees:
        Canaries that do not mix, of a mechanism whose curve lies nowhere below ``trade_off``, are
        contradicted with a probability of at most ``1 - confidence``.

    Raises:
        InputError: A canary has no finite score or no coin, or confidence is out of range.
    """
    check_confidence(confidence)
    (outcome,) = guess_outcomes(scores, included, choices=1)
    canaries, correct = outcome.canaries, outcome.correct
    accuracy = largest_accuracy(trade_off)
    chance = float(betainc(correct, canaries - correct + 1, accuracy)) if correct else 1.0
    return Contradiction(
        contradicted=chance <= 1 - confidence,
        p_value=chance,
        guesses=canaries,
        correct=correct,
        canaries=canaries,
        confidence=confidence,
        choices=1,
    )
