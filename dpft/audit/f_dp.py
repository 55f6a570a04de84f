"""The one-run test against a whole trade-off curve, and the Gaussian mu that it rules out.

Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run" (arXiv
2410.22235). The outcome is the same as in ``dpft.audit.one_run``: of m canaries, the coins of c are
guessed, and v guesses are right. Where the mechanism is known to be of a curve f, the test is far
sharper than that of (eps, delta), which is only one tangent of it.

Why it holds. Let C be the number of right guesses, p_i = P[C = i], and J a canary drawn at random:

    r_i = P[J guessed right, C >= i] = sum over j >= i of (j / m) p_j
    h_i = P[J guessed wrong, C >= i] = sum over j >= i of ((c - j) / m) p_j.

Turning J's coin over turns a right guess about it into a wrong one and leaves the guesses about the
other canaries right or wrong as they were. So "J right, i - 1 or more of the others right" is, on
neighboring data, "J wrong, i - 1 or more of the others right", and the curve bounds the one by the
other: h_{i-1} >= f(1 - r_i), after averaging over J and all coins, f being convex (their Theorem on
a bounded number of guesses, for guesses between two values; f is symmetric, so that 1 - f has the
inverse f(1 - .)). Suppose that P[C >= v] = tau. Least restrictive is to have all of it at v, and at
each smaller i the least p_i that the inequality allows (raising one of them never lowers a later r
or h); where r_0 + h_0 then exceeds c / m, which it equals, tau is impossible. With tau = 5 % this
is the test: the outcome v contradicts f (their Algorithm 3).

What it assumes: as ``one_run``. And ``mu_lower_bound`` rules out that the mechanism is
mu-Gaussian-DP for smaller mu, whatever it is; its epsilon is a lower bound only of a mechanism
whose curve is Gaussian. That of a plan is tested as it is by ``contradicts``. The bound stays below
the truth however many canaries there are, since it covers mechanisms that leak by a chance common
to all canaries; ``dpft.audit.independent`` leaves these out.

>>> round(mu_lower_bound(canaries=1000, guesses=1000, correct=841), 2)
0.68
>>> round(mu_lower_bound(canaries=1000, guesses=200, correct=195), 2)
1.08
"""

from functools import lru_cache

from dpft.audit.outcome import Outcome, check_confidence, check_delta, largest_rejected
from dpft.audit.trade_off import ApproximateTradeOff, GaussianTradeOff, TradeOff
from dpft.privacy.accounting.gdp import gaussian_epsilon

ROUNDING = 1e-12
"""By how much of it a sum must exceed its bound to count as above it."""
HALVINGS = 40
LEAST_DELTA = 1e-300
"""The delta that stands for 0 where a Gaussian's epsilon would be infinite."""


def contradicts(
    trade_off: TradeOff,
    *,
    canaries: int,
    guesses: int,
    correct: int,
    confidence: float = 0.95,
) -> bool:
    """Returns whether the outcome says that the mechanism is not of this trade-off curve.

    Args:
        trade_off: The curve of the mechanism, or a lower bound of it.
        canaries: Number of canaries, each included by a fair coin of its own.
        guesses: Number of them whose coin was guessed, fixed without regard to the coins.
        correct: Number of guesses that were right.
        confidence: How sure the answer is to be, in (0, 1).

    Guarantees:
        A mechanism whose curve lies nowhere below ``trade_off`` is contradicted with a probability
        of at most ``1 - confidence``.

    Raises:
        InputError: No guessing comes to these numbers, or confidence is out of range.
    """
    check_confidence(confidence)
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)
    return _impossible(trade_off, outcome, 1 - confidence)


def p_value(trade_off: TradeOff, *, canaries: int, guesses: int, correct: int) -> float:
    """Returns an upper bound of the chance of as many right guesses under a trade-off curve.

    Args:
        trade_off: As in ``contradicts``.
        canaries: As there.
        guesses: As there.
        correct: As there.

    Raises:
        InputError: No guessing comes to these numbers.
    """
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)
    if not _impossible(trade_off, outcome, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _impossible(trade_off, outcome, middle) else (middle, high)
    return high


def mu_lower_bound(*, canaries: int, guesses: int, correct: int, confidence: float = 0.95) -> float:
    """Returns the largest mu of Gaussian curves that the outcome contradicts; 0 if it does none.

    Args:
        canaries: As in ``contradicts``.
        guesses: As there.
        correct: As there.
        confidence: As there.

    Guarantees:
        A mechanism that is mu-Gaussian-DP in each canary gets a bound above mu with a probability
        of at most ``1 - confidence``.

    Raises:
        InputError: No guessing comes to these numbers, or confidence is out of range.
    """
    check_confidence(confidence)
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)
    return _mu_lower_bound(outcome, 1 - confidence)


def epsilon_lower_f_dp(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Returns the epsilon of ``mu_lower_bound``: a lower bound where the curve is Gaussian.

    Args:
        canaries: As in ``contradicts``.
        guesses: As there.
        correct: As there.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: As in ``contradicts``.

    Raises:
        InputError: No guessing comes to these numbers, or delta or confidence is out of range.
    """
    check_delta(delta)
    mu = mu_lower_bound(canaries=canaries, guesses=guesses, correct=correct, confidence=confidence)
    return gaussian_epsilon(mu, max(delta, LEAST_DELTA)) if mu > 0 else 0.0


def epsilon_lower_any_curve(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Returns the largest epsilon whose lowest curve the outcome contradicts.

    Holds for every mechanism, as ``one_run.epsilon_lower_bound`` does, which is often larger; this
    one does not grow weaker with ``canaries * delta``.

    Args:
        canaries: As in ``contradicts``.
        guesses: As there.
        correct: As there.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: As in ``contradicts``.

    Raises:
        InputError: No guessing comes to these numbers, or delta or confidence is out of range.
    """
    check_delta(delta)
    check_confidence(confidence)
    outcome = Outcome(canaries=canaries, guesses=guesses, correct=correct)

    def rejects(epsilon: float) -> bool:
        curve = ApproximateTradeOff(epsilon=epsilon, delta=delta)
        return _impossible(curve, outcome, 1 - confidence)

    return largest_rejected(rejects)


@lru_cache(maxsize=4096)
def _mu_lower_bound(outcome: Outcome, level: float) -> float:
    return largest_rejected(lambda mu: _impossible(GaussianTradeOff(mu), outcome, level))


def _impossible(trade_off: TradeOff, outcome: Outcome, chance: float) -> bool:
    """Returns whether ``correct`` or more right guesses cannot have this chance under the curve."""
    guesses, correct = outcome.guesses, outcome.correct
    most = guesses / outcome.canaries * (1 + ROUNDING)
    right = chance * correct / outcome.canaries
    wrong = chance * (guesses - correct) / outcome.canaries
    for fewer in range(correct - 1, -1, -1):
        least = float(trade_off(1 - right))
        if least <= wrong:
            # then no fewer guesses need be right, and nothing changes any more
            break
        right += fewer / (guesses - fewer) * (least - wrong)
        wrong = least
        if right + wrong > most:
            return True
    return False
