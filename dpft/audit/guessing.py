"""Statistics of one-run audits: turn right and wrong guesses into lower bounds of epsilon.

Each of m canaries is included in the training by a fair coin of its own. An attack gives every
canary a score, higher where it is more likely included, guesses "in" of the highest and "out" of
the lowest scores, and says nothing of those between. An `Outcome` is how many of its guesses were
right. Three tests ask whether an outcome is possible; read them in this order:

1. **Any (epsilon, delta)-DP mechanism** (`epsilon_lower_bound`): Steinke, Nasr and Jagielski 2023,
   "Privacy auditing with one (1) training run" (arXiv 2305.08846). Under (eps, 0)-DP, r guesses are
   right no more often than r throws of a coin of chance q = e^eps / (1 + e^eps), although all are
   about one model (Theorem 5.2). With delta, the chance of v or more right ones is at most

       P[B >= v] + 2 m delta * max over i in 1..v of P[v > B >= v - i] / i,   B ~ Binomial(r, q)

   (Theorem 5.2, Corollary 5.4; the algorithm is Appendix D).
2. **A trade-off curve f** (`p_value`, `mu_lower_bound`): Mahloujifar, Melis and Chaudhuri 2024,
   "Auditing f-differential privacy in one run" (arXiv 2410.22235). It is far sharper where the
   curve is known, of which (eps, delta) is one tangent. Let C be the number of right guesses among
   c, p_i = P[C = i], and J a canary drawn at random:

       r_i = P[J guessed right, C >= i] = sum over j >= i of (j / m) p_j
       h_i = P[J guessed wrong, C >= i] = sum over j >= i of ((c - j) / m) p_j.

   Turning J's coin over turns a right guess about it into a wrong one and leaves the others as they
   were, so the curve bounds "J right, i - 1 or more of the others right" by the same with J wrong:
   h_{i-1} >= f(1 - r_i), averaged over J and all coins, f being convex and symmetric. Suppose
   P[C >= v] = tau. Least restrictive is to have all of it at v, and at each smaller i the least p_i
   that the inequality allows. Where r_0 + h_0, which equals c / m, would exceed c / m, tau is
   impossible (their Algorithm 3). The largest mu that is ruled out is a lower bound whatever the
   mechanism is; its epsilon is one only where the curve is Gaussian.
3. **Independent canaries** (`find_contradiction_independent`): a curve alone allows a mechanism to
   leak by common chance, to tell nothing in 19 of 20 trainings and much about every canary in the
   twentieth, so that 841 right guesses of 1,000 rule out a Gaussian mu of no more than 0.68. DP-SGD
   adds noise that is independent in every direction. Where each canary moves the weights in a
   direction of its own, what is seen of one says nothing about another's coin, each is guessed
   right with a chance of at most a = 1 - alpha, f(alpha) = alpha (Phi(mu / 2) for a Gaussian), and
   the number of right guesses about all m is at most binomial. The same 841 rule out mu < 1.84.

How many guesses show the most is not known beforehand. A list of numbers that depends on m alone is
tried, each at a confidence that pays for all (Bonferroni). Where a score that is guessed is shared
by more canaries than guesses are left, the guesses count as if they fell on those for which they
are wrong: ties never show more than any way of breaking them without the coins.

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
"""At how many numbers of guesses an audit looks."""
FEWEST = 1 / 20
"""The share of the canaries about which the fewest guesses of the list are made."""
DEVIATIONS = 3.0
"""By how many standard deviations of the coins the included ones may be more than half."""
TOLERANCE = 1e-6
"""By how much a lower bound may lie below the largest value that the test rejects."""
ROUNDING = 1e-12
"""By how much of it a sum must exceed its bound to count as above it."""
HALVINGS = 40
LEAST_DELTA = 1e-300
"""The delta that stands for 0 where a Gaussian's epsilon would be infinite."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How many guesses about canaries were right: whether each was included in the training.

    Attributes:
        canaries: How many there were, each included by a fair coin of its own.
        guesses: For how many of them "in" or "out" was guessed, without regard to the coins.
        correct: How many of the guesses were right.

    Raises:
        InputError: No guessing can come to these numbers.
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
    """The largest of the lower bounds that an audit's numbers of guesses show.

    Attributes:
        epsilon_lower: It, in the confidence asked for.
        guesses: How many guesses showed it.
        correct: How many of these were right.
        canaries: How many canaries there were.
        confidence: That of ``epsilon_lower``, all numbers of guesses tried paid for.
        choices: How many numbers of guesses were tried.
        largest_epsilon_lower: The largest bound that so many canaries could have shown.
        outcomes: What came of each number of guesses, from the most to the fewest.
        epsilons: The lower bound by each of ``outcomes``; all hold at once in ``confidence``.
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
        """The numbers of guesses, ascending, and the lower bound by each: the points of a plot."""
        guesses = [outcome.guesses for outcome in self.outcomes]
        return tuple(sorted(zip(guesses, self.epsilons, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Whether an audit's outcomes are possible under a trade-off curve.

    Attributes:
        contradicted: Whether they say, in ``confidence``, that the mechanism is not of this curve.
        p_value: An upper bound of the chance of an outcome as telling as the most telling one, all
            numbers of guesses tried paid for; at most 1.
        guesses: How many guesses the most telling outcome had.
        correct: How many of these were right.
        canaries: How many canaries there were.
        confidence: As asked for.
        choices: How many numbers of guesses were tried.
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
        scores: One for each canary, shape (m,), higher where it is more likely included.
        included: Its coin, shape (m,), of booleans.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: How sure the bound is to be, in (0, 1), the choice among ``choices`` paid for.
        choices: Length of the list of numbers of guesses.
        gaussian: Whether the mechanism's curve is taken to be Gaussian.

    Guarantees:
        Whatever is (eps, delta)-differentially private in each canary (and, with ``gaussian``, of a
        Gaussian curve) gets a bound above eps with a probability of at most ``1 - confidence``.

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
    """Return whether the scores are possible under a trade-off curve, the plan's for instance.

    Guarantees:
        A mechanism whose curve lies nowhere below ``trade_off`` is contradicted with a probability
        of at most ``1 - confidence``.

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

    Guesses about only some canaries are not bounded by it: the surest would be chosen.

    Guarantees:
        Canaries that do not mix, of a mechanism whose curve lies nowhere below ``trade_off``, are
        contradicted with a probability of at most ``1 - confidence``.

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
    """Return the largest epsilon that the outcome contradicts; 0 where it contradicts none.

    Args:
        outcome: Of guesses whose number was fixed without regard to the coins.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: How sure the bound is to be, in (0, 1).

    Guarantees:
        Whatever is (eps, delta)-differentially private in each canary gets a bound above eps with
        a probability of at most ``1 - confidence``.
    """
    check_delta(delta)
    check_confidence(confidence)
    return _epsilon_lower_bound(outcome, delta, 1 - confidence)


@lru_cache(maxsize=4096)
def _epsilon_lower_bound(outcome: Outcome, delta: float, level: float) -> float:
    p_value_of = p_value_of_epsilon(outcome, delta)
    return largest_rejected(lambda epsilon: p_value_of(epsilon) <= level)


def p_value_of_epsilon(outcome: Outcome, delta: float) -> Callable[[float], float]:
    """Return a bound of the chance of as many right guesses under (eps, delta)-DP, by epsilon."""
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
    """Return an upper bound of the chance of as many right guesses under a trade-off curve."""
    if not is_impossible(trade_off, outcome, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_impossible(trade_off, outcome, middle) else (middle, high)
    return high


def mu_lower_bound(outcome: Outcome, *, confidence: float = 0.95) -> float:
    """Return the largest mu of Gaussian curves that the outcome contradicts; 0 if it does none.

    Guarantees:
        A mechanism that is mu-Gaussian-DP in each canary gets a bound above mu with a probability
        of at most ``1 - confidence``.
    """
    check_confidence(confidence)
    return _mu_lower_bound(outcome, 1 - confidence)


@lru_cache(maxsize=4096)
def _mu_lower_bound(outcome: Outcome, level: float) -> float:
    return largest_rejected(lambda mu: is_impossible(GaussianTradeOff(mu), outcome, level))


def epsilon_lower_if_gaussian(outcome: Outcome, *, delta: float, confidence: float = 0.95) -> float:
    """Return the epsilon of ``mu_lower_bound``: a lower bound where the curve is Gaussian."""
    check_delta(delta)
    mu = mu_lower_bound(outcome, confidence=confidence)
    return gaussian_epsilon(mu, max(delta, LEAST_DELTA)) if mu > 0 else 0.0


def is_impossible(trade_off: TradeOff, outcome: Outcome, chance: float) -> bool:
    """Return whether ``correct`` or more right guesses cannot have this chance under the curve."""
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


def largest_accuracy(trade_off: TradeOff) -> float:
    """Return how often, at most, the coin of one canary can be guessed right under a curve.

    >>> round(largest_accuracy(GaussianTradeOff(1.0)), 4)  # Phi(1/2)
    0.6915
    """
    low, high = 0.0, 0.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if trade_off(middle) > middle else (low, middle)
    return 1 - low


def guess_counts(canaries: int, choices: int = CHOICES) -> tuple[int, ...]:
    """Return which numbers of guesses an audit tries: all of the canaries, then fewer.

    They fall evenly in ratio, to a twentieth of the canaries, and never depend on a score.

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

    The guesses are shared out between "in" and "out" as the scores fall into two groups
    (``_split``), so that a model which separates the two perfectly makes no wrong guess only
    because more or fewer than half of the coins fell on "in".

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
    """Return how many are right of the first k guesses of "in", of "out", and the split.

    Of equal scores those for which the guess is wrong come first.

    Returns:
        Of the k highest scores how many are included, of the k lowest how many are not, both of
        shape (m + 1,) for k from 0; and how many scores count as low.

    Raises:
        InputError: A score is missing or not finite, a coin is missing or no boolean, or there are
            no canaries.
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
    # the last key of a sort leads; the first decides among equal scores
    highest_first = np.lexsort((coins, -numbers))
    lowest_first = np.lexsort((~coins, numbers))
    right_in = np.concatenate([[0], np.cumsum(coins[highest_first])])
    right_out = np.concatenate([[0], np.cumsum(~coins[lowest_first])])
    return right_in, right_out, _split(numbers[lowest_first])


def _split(ascending: NDArray[np.float64]) -> int:
    """Return how many of the scores count as low: where the widest gap near the middle is.

    Near the middle is within ``DEVIATIONS`` standard deviations of the number of coins that fall
    on one side; of equally wide gaps the one nearest to the middle counts.
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
    """Return the confidence of each of some bounds that hold at once in ``confidence``.

    Bonferroni's correction: whichever of them is then reported, for instance the largest, holds
    with the confidence asked for.

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
    """Return the largest value from 0 on that a test rejects, 0 where it rejects none.

    Args:
        rejects: Whether a value is rejected; where it rejects a value, it rejects every smaller
            one, and it does not reject them all.

    Guarantees:
        A value above 0 is itself rejected, and at most ``TOLERANCE`` below the largest.
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
