"""A lower bound of epsilon from one run, by its guesses about canaries.

Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run" (arXiv 2305.08846).
Each of m canaries is included by a fair coin; an attack sees the trained model, and guesses the
coins of r canaries of its choice. Were the training (eps, 0)-differentially private, the guesses
would be right no more often than r throws of a coin that falls right with probability
q = e^eps / (1 + e^eps), even though they all are about one model (Theorem 5.2, delta = 0). With
delta, the chance of v or more right ones is at most

    P[B >= v] + 2 m delta * max over i in 1..v of P[v > B >= v - i] / i,   B ~ Binomial(r, q)

(Theorem 5.2 and Corollary 5.4; the algorithm is Appendix D). So an epsilon at which that chance
is below 5 % is contradicted by the outcome, and the largest of them is a lower bound that is wrong
in at most 5 % of audits.

What it assumes: fair and independent coins, and a number of guesses that is fixed beforehand
(``dpft.audit.guessing`` corrects for looking at several). It assumes nothing of the mechanism.

>>> round(epsilon_lower_bound(canaries=1000, guesses=100, correct=75, delta=1e-4), 3)
0.673
>>> round(largest_epsilon_lower(1000, delta=1e-5, choices=10), 2)
5.14
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import betainc, gammaln

from dpft.audit.outcome import (
    Outcome,
    check_confidence,
    check_delta,
    confidence_of_each,
    largest_rejected,
)
from dpft.errors import InputError


def epsilon_lower_bound(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Returns the largest epsilon that the outcome contradicts; 0 where it contradicts none.

    Args:
        canaries: Number of canaries, each included by a fair coin of its own.
        guesses: Number of them whose coin was guessed, fixed without regard to the coins.
        correct: Number of guesses that were right.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: How sure the bound is to be, in (0, 1).

    Guarantees:
        Whatever is (eps, delta)-differentially private in each canary gets a bound above eps with
        a probability of at most ``1 - confidence``.

    Raises:
        InputError: No guessing comes to these numbers, or delta or confidence is out of range.
    """
    check_delta(delta)
    check_confidence(confidence)
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)
    return _lower_bound(outcome, delta, 1 - confidence)


def largest_epsilon_lower(
    canaries: int, *, delta: float, confidence: float = 0.95, choices: int = 1
) -> float:
    """Returns the largest lower bound that so many canaries could have shown.

    It is that of a guess about each of them, all of them right.

    Args:
        canaries: Number of canaries.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: How sure the bound is to be, in (0, 1).
        choices: At how many numbers of guesses the audit looks, each corrected for it.

    Raises:
        InputError: There are no canaries, or another value is out of range.
    """
    return epsilon_lower_bound(
        canaries=canaries,
        guesses=canaries,
        correct=canaries,
        delta=delta,
        confidence=confidence_of_each(confidence, choices),
    )


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound of the chance of as many right guesses under (epsilon, delta)-DP.

    Args:
        canaries: As in ``epsilon_lower_bound``.
        guesses: As there.
        correct: As there.
        epsilon: At least 0.
        delta: In [0, 1).

    Raises:
        InputError: No guessing comes to these numbers, or epsilon or delta is out of range.
    """
    check_delta(delta)
    if not epsilon >= 0:
        raise InputError(f"epsilon must be at least 0, got {epsilon}.")
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)
    return _Test(outcome, delta).p_value(epsilon)


@lru_cache(maxsize=4096)
def _lower_bound(outcome: Outcome, delta: float, level: float) -> float:
    test = _Test(outcome, delta)
    return largest_rejected(lambda epsilon: test.p_value(epsilon) <= level)


class _Test:
    """The test of one outcome, with what does not depend on epsilon computed once."""

    def __init__(self, outcome: Outcome, delta: float) -> None:
        guesses, correct = outcome.guesses, outcome.correct
        self._guesses, self._correct = guesses, correct
        self._added = 2 * outcome.canaries * delta
        self._fewer = np.arange(correct - 1, -1, -1)
        self._log_ways = (
            gammaln(guesses + 1) - gammaln(self._fewer + 1) - gammaln(guesses - self._fewer + 1)
        )

    def p_value(self, epsilon: float) -> float:
        if self._correct == 0:
            return 1.0
        log_wrong = -epsilon - math.log1p(math.exp(-epsilon))
        log_right = -math.log1p(math.exp(-epsilon))
        tail = betainc(self._correct, self._guesses - self._correct + 1, math.exp(log_right))
        if self._added == 0:
            return float(tail)
        wrong = self._guesses - self._fewer
        below = np.exp(self._log_ways + self._fewer * log_right + wrong * log_wrong)
        steepest = np.max(np.cumsum(below) / np.arange(1, self._correct + 1))
        return float(min(1.0, tail + self._added * steepest))
