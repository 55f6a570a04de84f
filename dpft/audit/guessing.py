"""Statistics of one-run audits: convert right and wrong guesses into lower bounds of epsilon.

Each of m canaries is included in the training according to its own fair coin. An attack assigns
every canary a score, which is higher if the canary is more likely included. The attack guesses "in"
for the highest scores and "out" for the lowest, and makes no guess in between. An `Outcome`
contains the number of right guesses. Three tests check whether an outcome is possible; read them in
this order:

1. **Any (epsilon, delta)-DP mechanism** (`epsilon_lower_bound`): Steinke, Nasr and Jagielski 2023,
   "Privacy auditing with one (1) training run" (arXiv 2305.08846). Consider a coin with probability
   q = e^eps / (1 + e^eps). Under (eps, 0)-DP, the number of right guesses among r is stochastically
   at most the number of heads in r tosses of this coin. This holds although all guesses are about
   one model (Theorem 5.2). With delta, the probability of v or more right guesses is at most

       P[B >= v] + 2 m delta * max over i in 1..v of P[v > B >= v - i] / i,   B ~ Binomial(r, q)

   (Theorem 5.2, Corollary 5.4; the algorithm is in Appendix D).
2. **A trade-off curve f** (`p_value`, `mu_lower_bound`): Mahloujifar, Melis and Chaudhuri 2024,
   "Auditing f-differential privacy in one run" (arXiv 2410.22235). This test is much stronger if
   the curve is known; (eps, delta) is one tangent of the curve. Let C be the number of right
   guesses among c, p_i = P[C = i], and J a random canary:

       r_i = P[J guessed right, C >= i] = sum over j >= i of (j / m) p_j
       h_i = P[J guessed wrong, C >= i] = sum over j >= i of ((c - j) / m) p_j.

   Inverting J's coin turns a right guess about J into a wrong guess and does not change the other
   guesses. The curve therefore bounds the event "J right, i - 1 or more of the others right" by the
   same event with J wrong: h_{i-1} >= f(1 - r_i). The inequality is averaged over J and all coins,
   because f is convex and symmetric. Suppose P[C >= v] = tau. In the least restrictive case, all of
   tau is at v, and p_i for each smaller i is the smallest value that the inequality allows. By
   definition, r_0 + h_0 = c / m. If this sum is larger even in that case, tau is impossible (their
   Algorithm 3). The largest mu that is ruled out is a lower bound for every mechanism. Its epsilon
   is a lower bound only if the curve is Gaussian.
3. **Independent canaries** (`find_contradiction_independent`): a trade-off curve also allows a
   mechanism whose leaks about all canaries depend on one random event. For example, the mechanism
   may reveal nothing in 19 of 20 trainings, and much about every canary in the twentieth.
   Therefore, 841 right guesses of 1,000 only rule out a Gaussian mu of up to 0.68. DP-SGD, in
   contrast, adds noise that is independent in every direction. Suppose that each canary moves the
   weights in its own direction. Observations of one canary then reveal nothing about another's
   coin. Each canary is guessed right with a probability of at most a = 1 - alpha, with f(alpha) =
   alpha (Phi(mu / 2) for a Gaussian). The number of right guesses about all m canaries is
   stochastically at most binomial. The same 841 right guesses then rule out mu < 1.84.

The best number of guesses is not known beforehand. The tests therefore try a list of numbers that
depends only on m. The confidence of each test is corrected for the number of tests (Bonferroni).
Several canaries can have the same score. If a tie contains more canaries than remaining guesses,
the guesses are assigned first to the canaries for which they are wrong. A bound is therefore never
larger than if the tie had been broken without knowledge of the coins.

>>> round(epsilon_lower_bound(Outcome(canaries=1000, guesses=100, correct=75), delta=1e-4), 3)
0.673
>>> round(mu_lower_bound(Outcome(canaries=1000, guesses=1000, correct=841)), 2)
0.68
>>> round(mu_lower_bound(Outcome(canaries=1000, guesses=200, correct=195)), 2)
1.08
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammaln

from dpft.audit.trade_off import GaussianTradeOff, TradeOff, check_confidence
from dpft.errors import InputError
from dpft.privacy.accounting.gdp import gaussian_epsilon

CHOICES = 10
"""Number of guess counts that an audit tries (``guess_counts``)."""
FEWEST = 1 / 20
"""Smallest number of guesses to try, as a share of the canaries."""
DEVIATIONS = 3.0
"""Number of standard deviations by which the number of included canaries may differ from half."""
TOLERANCE = 1e-6
"""Maximum difference between a lower bound and the largest value that the test rejects."""
ROUNDING = 1e-12
"""Relative amount by which a sum must exceed its bound to count as larger."""
HALVINGS = 40
LEAST_DELTA = 1e-300
"""Value used for a delta of 0 if the epsilon of a Gaussian would be infinite."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The number of right guesses about whether each canary was included in the training.

    Attributes:
        canaries: Number of canaries, each included according to its own fair coin.
        guesses: Number of canaries with a guess "in" or "out". This number must not depend on the
            coins.
        correct: Number of right guesses.

    Raises:
        InputError: The numbers are not possible.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if self.canaries < 1:
            raise InputError(
                f"canaries must be at least 1, got {self.canaries}.",
                key="canaries",
                value=self.canaries,
            )
        if not 0 <= self.guesses <= self.canaries:
            raise InputError(
                f"guesses must be between 0 and the number of canaries ({self.canaries}), got"
                f" {self.guesses}.",
                key="guesses",
                value=self.guesses,
            )
        if not 0 <= self.correct <= self.guesses:
            raise InputError(
                f"correct must be between 0 and the number of guesses ({self.guesses}), got"
                f" {self.correct}.",
                key="correct",
                value=self.correct,
            )


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """The largest lower bound of epsilon over the guess counts that an audit tries.

    Attributes:
        epsilon_lower: The largest lower bound, at ``confidence``.
        guesses: The number of guesses that gives the largest bound.
        correct: Number of right guesses among them.
        canaries: Number of canaries.
        confidence: Confidence of ``epsilon_lower``, corrected for all tried numbers of guesses.
        choices: Number of guess counts that were tried.
        largest_epsilon_lower: The largest bound that is possible with this number of canaries.
        outcomes: The outcome for each guess count, from the largest to the smallest.
        epsilons: The lower bound for each of ``outcomes``; all hold together at ``confidence``.
    """

    epsilon_lower: float
    guesses: int
    correct: int
    canaries: int
    confidence: float
    choices: int
    largest_epsilon_lower: float
    outcomes: tuple[Outcome, ...]
    epsilons: tuple[float, ...]

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """The numbers of guesses, ascending, each with its lower bound: the points of a plot."""
        guesses = [outcome.guesses for outcome in self.outcomes]
        return tuple(sorted(zip(guesses, self.epsilons, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Whether an audit's outcomes are possible under a trade-off curve.

    Attributes:
        contradicted: Whether the outcomes show, at ``confidence``, that the mechanism does not have
            this curve.
        p_value: Upper bound of the probability of an outcome as extreme as the most extreme one,
            corrected for all tried numbers of guesses; at most 1.
        guesses: Number of guesses of the most extreme outcome.
        correct: Number of right guesses among them.
        canaries: Number of canaries.
        confidence: The requested confidence.
        choices: Number of guess counts that were tried.
    """

    contradicted: bool
    p_value: float
    guesses: int
    correct: int
    canaries: int
    confidence: float
    choices: int


def best_lower_bound(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    choices: int = CHOICES,
    gaussian: bool = False,
) -> LowerBound:
    """Return the largest lower bound of epsilon over a fixed list of numbers of guesses.

    Args:
        scores: Score of each canary, shape (m,); higher if the canary is more likely included.
        included: Coin of each canary, shape (m,), booleans.
        delta: Delta of the (epsilon, delta) guarantee, in [0, 1).
        confidence: Confidence of the bound, in (0, 1), after correction for ``choices``.
        choices: Number of guess counts to try.
        gaussian: Whether to assume that the mechanism's curve is Gaussian.

    Guarantees:
        Consider a mechanism that is (eps, delta)-differentially private in each canary and, with
        ``gaussian``, has a Gaussian curve. The bound exceeds eps with a probability of at most ``1
        - confidence``.

    Raises:
        InputError: A canary has no finite score or no coin, or a value is out of range.
    """
    check_delta(delta)
    choice_confidence = confidence_of_each(confidence, choices)
    test = epsilon_lower_if_gaussian if gaussian else epsilon_lower_bound
    outcomes = guess_outcomes(scores, included, choices=choices)
    epsilons = tuple(
        test(outcome, delta=delta, confidence=choice_confidence) for outcome in outcomes
    )
    best = outcomes[int(np.argmax(epsilons))]
    all_right = Outcome(canaries=best.canaries, guesses=best.canaries, correct=best.canaries)
    return LowerBound(
        epsilon_lower=max(epsilons),
        guesses=best.guesses,
        correct=best.correct,
        canaries=best.canaries,
        confidence=confidence,
        choices=choices,
        largest_epsilon_lower=test(all_right, delta=delta, confidence=choice_confidence),
        outcomes=outcomes,
        epsilons=epsilons,
    )


def find_contradiction(
    scores: ArrayLike,
    included: ArrayLike,
    trade_off: TradeOff,
    *,
    confidence: float = 0.95,
    choices: int = CHOICES,
) -> Contradiction:
    """Return whether the scores are possible under a trade-off curve, such as the plan's curve.

    Guarantees:
        A mechanism with a curve that is nowhere below ``trade_off`` is contradicted with a
        probability of at most ``1 - confidence``.

    Raises:
        InputError: A canary has no finite score or no coin, or a value is out of range.
    """
    confidence_of_each(confidence, choices)
    outcomes = guess_outcomes(scores, included, choices=choices)
    chances = [p_value(trade_off, outcome) for outcome in outcomes]
    least = min(chances)
    telling = outcomes[chances.index(least)]
    return _contradiction(telling, min(1.0, choices * least), confidence, choices)


def find_contradiction_independent(
    scores: ArrayLike, included: ArrayLike, trade_off: TradeOff, *, confidence: float = 0.95
) -> Contradiction:
    """Return whether the accuracy of guesses about all canaries is possible under a curve.

    The test requires a guess about every canary. An attack that guesses only some coins selects the
    most certain guesses, which raises its accuracy.

    Guarantees:
        Suppose that canaries do not mix and that the mechanism's curve is nowhere below
        ``trade_off``. The mechanism is contradicted with a probability of at most ``1 -
        confidence``.

    Raises:
        InputError: A canary has no finite score or no coin, or confidence is out of range.
    """
    check_confidence(confidence)
    (outcome,) = guess_outcomes(scores, included, choices=1)
    wrong = outcome.canaries - outcome.correct
    accuracy = largest_accuracy(trade_off)
    chance = float(betainc(outcome.correct, wrong + 1, accuracy)) if outcome.correct else 1.0
    return _contradiction(outcome, chance, confidence, choices=1)


def _contradiction(
    outcome: Outcome, chance: float, confidence: float, choices: int
) -> Contradiction:
    return Contradiction(
        contradicted=chance <= 1 - confidence,
        p_value=chance,
        confidence=confidence,
        choices=choices,
        **vars(outcome),
    )


def epsilon_lower_bound(outcome: Outcome, *, delta: float, confidence: float = 0.95) -> float:
    """Return the largest epsilon that the outcome contradicts; 0 if it contradicts no epsilon.

    Args:
        outcome: Outcome of guesses; their number was fixed independently of the coins.
        delta: Delta of the (epsilon, delta) guarantee, in [0, 1).
        confidence: Confidence of the bound, in (0, 1).

    Guarantees:
        If a mechanism is (eps, delta)-differentially private in each canary, the bound exceeds eps
        with a probability of at most ``1 - confidence``.
    """
    check_delta(delta)
    check_confidence(confidence)
    return _epsilon_lower_bound(outcome, delta, 1 - confidence)


@lru_cache(maxsize=4096)
def _epsilon_lower_bound(outcome: Outcome, delta: float, level: float) -> float:
    p_value_of = p_value_of_epsilon(outcome, delta)
    return largest_rejected(lambda epsilon: p_value_of(epsilon) <= level)


def p_value_of_epsilon(outcome: Outcome, delta: float) -> Callable[[float], float]:
    """Return a function from epsilon to an upper bound of the p-value under (eps, delta)-DP.

    The p-value is the probability of at least this many right guesses.
    """
    guesses, correct = outcome.guesses, outcome.correct
    added = 2 * outcome.canaries * delta
    fewer = np.arange(correct - 1, -1, -1)
    log_ways = gammaln(guesses + 1) - gammaln(fewer + 1) - gammaln(guesses - fewer + 1)

    def p_value(epsilon: float) -> float:
        if correct == 0:
            return 1.0
        log_right = -math.log1p(math.exp(-epsilon))
        log_wrong = log_right - epsilon
        tail = betainc(correct, guesses - correct + 1, math.exp(log_right))
        if added == 0:
            return float(tail)
        below = np.exp(log_ways + fewer * log_right + (guesses - fewer) * log_wrong)
        steepest = np.max(np.cumsum(below) / np.arange(1, correct + 1))
        return float(min(1.0, tail + added * steepest))

    return p_value


def p_value(trade_off: TradeOff, outcome: Outcome) -> float:
    """Return an upper bound of the probability of at least as many right guesses under a curve."""
    if not is_impossible(trade_off, outcome, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_impossible(trade_off, outcome, middle) else (middle, high)
    return high


def mu_lower_bound(outcome: Outcome, *, confidence: float = 0.95) -> float:
    """Return the largest mu whose Gaussian curve the outcome contradicts; 0 if there is none.

    Guarantees:
        If a mechanism is mu-Gaussian-DP in each canary, the bound exceeds mu with a probability of
        at most ``1 - confidence``.
    """
    check_confidence(confidence)
    return _mu_lower_bound(outcome, 1 - confidence)


@lru_cache(maxsize=4096)
def _mu_lower_bound(outcome: Outcome, level: float) -> float:
    return largest_rejected(lambda mu: is_impossible(GaussianTradeOff(mu), outcome, level))


def epsilon_lower_if_gaussian(outcome: Outcome, *, delta: float, confidence: float = 0.95) -> float:
    """Return the epsilon of ``mu_lower_bound``, a lower bound if the curve is Gaussian."""
    check_delta(delta)
    mu = mu_lower_bound(outcome, confidence=confidence)
    return gaussian_epsilon(mu, max(delta, LEAST_DELTA)) if mu > 0 else 0.0


def is_impossible(trade_off: TradeOff, outcome: Outcome, chance: float) -> bool:
    """Return whether ``chance`` is impossible as the probability of so many right guesses."""
    guesses, correct = outcome.guesses, outcome.correct
    most = guesses / outcome.canaries * (1 + ROUNDING)
    right = chance * correct / outcome.canaries
    wrong = chance * (guesses - correct) / outcome.canaries
    for fewer in range(correct - 1, -1, -1):
        least = float(trade_off(1 - right))
        if least <= wrong:
            # Outcomes with fewer right guesses may have probability 0, so the sum grows no further.
            break
        right += fewer / (guesses - fewer) * (least - wrong)
        wrong = least
        if right + wrong > most:
            return True
    return False


def largest_accuracy(trade_off: TradeOff) -> float:
    """Return the largest probability of guessing the coin of one canary right under a curve.

    >>> round(largest_accuracy(GaussianTradeOff(1.0)), 4)  # Phi(1/2)
    0.6915
    """
    low, high = 0.0, 0.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if trade_off(middle) > middle else (low, middle)
    return 1 - low


def guess_counts(canaries: int, choices: int = CHOICES) -> tuple[int, ...]:
    """Return the numbers of guesses that an audit tries: all of the canaries, then fewer.

    The numbers decrease by a constant ratio to a twentieth of the canaries. They never depend on a
    score.

    >>> guess_counts(1000)
    (1000, 717, 514, 368, 264, 189, 136, 97, 70, 50)
    """
    steps = max(1, choices - 1)
    counts = [max(1, round(canaries * FEWEST ** (step / steps))) for step in range(choices)]
    return tuple(dict.fromkeys(counts))


def guess_outcomes(
    scores: ArrayLike, included: ArrayLike, *, choices: int = CHOICES
) -> tuple[Outcome, ...]:
    """Return the outcome of guessing by the scores, for each number of ``guess_counts``.

    The guesses are divided between "in" and "out" in proportion to the two groups of scores
    (``_split``). If the scores separate the groups perfectly, but more or fewer than half of the
    coins are "in", this division avoids wrong guesses.

    Raises:
        InputError: A canary has no finite score or no coin, or there are no choices.
    """
    if choices < 1:
        raise InputError(
            f"choices must be at least 1, got {choices}.", key="choices", value=choices
        )
    right_in, right_out, split = count_right(scores, included)
    canaries = len(right_in) - 1
    outcomes = []
    for guesses in guess_counts(canaries, choices):
        guessed_in = round(guesses * (canaries - split) / canaries)
        correct = int(right_in[guessed_in] + right_out[guesses - guessed_in])
        outcomes.append(Outcome(canaries=canaries, guesses=guesses, correct=correct))
    return tuple(outcomes)


def count_right(
    scores: ArrayLike, included: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the numbers of right guesses among the first k guesses "in" and "out", and the split.

    Among canaries with equal scores, the canaries with a wrong guess come first.

    Returns:
        Three values: the number of included canaries among the k highest scores, shape (m + 1,) for
        k from 0; the number of excluded canaries among the k lowest scores, of the same shape; and
        the number of scores that count as low.

    Raises:
        InputError: A score is missing or not finite, a coin is missing or not a boolean, or there
            are no canaries.
    """
    numbers, coins = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if coins.ndim != 1 or coins.dtype != np.bool_ or len(coins) == 0:
        raise InputError(
            "included must contain a boolean for each canary, and at least one.", key="included"
        )
    if numbers.shape != coins.shape:
        raise InputError(
            f"scores must contain one for each canary, got {numbers.size} scores of {coins.size}"
            " canaries.",
            key="scores",
        )
    unusable = np.flatnonzero(~np.isfinite(numbers))
    if len(unusable):
        first = unusable[0]
        raise InputError(
            f"scores must be finite, got {numbers[first]} for canary {first}, and"
            f" {len(unusable) - 1} others that are not finite.",
            key="scores",
            value=float(numbers[first]),
        )
    # The last key of lexsort is the primary key; the first key orders equal scores.
    highest_first = np.lexsort((coins, -numbers))
    lowest_first = np.lexsort((~coins, numbers))
    right_in = np.concatenate([[0], np.cumsum(coins[highest_first])])
    right_out = np.concatenate([[0], np.cumsum(~coins[lowest_first])])
    return right_in, right_out, _split(numbers[lowest_first])


def _split(ascending: NDArray[np.float64]) -> int:
    """Return the number of scores below the widest gap near the middle, which count as low.

    A gap is near the middle if it is within ``DEVIATIONS`` standard deviations of the number of
    coins on one side. If several gaps are equally wide, the gap nearest to the middle is used.
    """
    canaries = len(ascending)
    reach = DEVIATIONS * math.sqrt(canaries) / 2
    first = max(1, math.ceil(canaries / 2 - reach))
    last = min(canaries - 1, math.floor(canaries / 2 + reach))
    if first > last:
        return canaries // 2
    places = np.arange(first, last + 1)
    gaps = ascending[places] - ascending[places - 1]
    from_middle = np.abs(places - canaries / 2)
    return int(places[np.lexsort((from_middle, -gaps))[0]])


def check_delta(delta: float) -> None:
    """Reject a delta outside [0, 1)."""
    if not 0 <= delta < 1:
        raise InputError(
            f"delta must be in [0, 1), got {delta}. Use the delta of the run's report.",
            key="delta",
            value=delta,
        )


def confidence_of_each(confidence: float, choices: int) -> float:
    """Return the confidence each bound needs so that all of them hold at ``confidence``.

    With Bonferroni's correction, any of the bounds may be reported, for example the largest. The
    reported bound then holds at the requested confidence.

    >>> round(confidence_of_each(0.95, 10), 6)
    0.995
    """
    check_confidence(confidence)
    if choices < 1:
        raise InputError(
            f"choices must be at least 1, got {choices}.", key="choices", value=choices
        )
    return 1 - (1 - confidence) / choices


def largest_rejected(rejects: Callable[[float], bool]) -> float:
    """Return the largest nonnegative value that the test rejects, or 0 if it rejects no value.

    Args:
        rejects: Function that returns whether the test rejects a value. It must reject every value
            below a rejected one, and must accept some value.

    Guarantees:
        A returned value above 0 is itself rejected, and it is at most ``TOLERANCE`` below the
        largest rejected value.
    """
    if not rejects(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejects(high):
        low, high = high, 2 * high
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low
