"""From scores of canaries to guesses, and to the best lower bound of epsilon that they show.

An attack gives every canary a score, higher where it is more likely to have been included. It says
"in" of those with the highest scores and "out" of those with the lowest, and nothing of the ones
between. How many guesses show the most is not known beforehand, so a list of numbers that depends
on nothing but the number of canaries is looked at, and each of its bounds is taken at a confidence
that pays for having looked at all (``confidence_of_each``).

Ties: where a score that is guessed is shared by more canaries than there are guesses left, the
guesses are counted as if they fell on those for which they are wrong. So equal scores never show
more than any way of breaking the tie without knowing the coins, and no tie is broken by chance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpft.audit.one_run import epsilon_lower_bound, largest_epsilon_lower
from dpft.audit.outcome import Outcome, check_delta, confidence_of_each
from dpft.errors import InputError

CHOICES = 10
"""At how many numbers of guesses an audit looks."""
FEWEST = 1 / 20
"""The share of the canaries about which the fewest guesses of the list are made."""
DEVIATIONS = 3.0
"""By how many standard deviations of the coins the included ones may be more than half."""

Scores = NDArray[np.float64]
Coins = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """The largest of the lower bounds that an audit's numbers of guesses show.

    Attributes:
        epsilon_lower: It, in the confidence asked for.
        guesses: How many guesses showed it.
        correct: How many of these were right.
        canaries: How many canaries there were.
        confidence: That of ``epsilon_lower``, the looks at all numbers of guesses paid for.
        choices: At how many numbers of guesses was looked.
        largest_epsilon_lower: The largest bound that so many canaries could have shown.
        outcomes: What came of each number of guesses, from the most to the fewest.
        epsilons: The lower bound by each of them, in the order of ``outcomes``; each may be
            reported beside the others, all of them hold at once in ``confidence``.
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


def best_lower_bound(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    choices: int = CHOICES,
) -> LowerBound:
    """Returns the largest lower bound of epsilon over a fixed list of numbers of guesses.

    Args:
        scores: One for each canary, shape (m,), higher where it is more likely included.
        included: Its coin, shape (m,), of booleans.
        delta: The delta beside which epsilon stands, in [0, 1).
        confidence: How sure the bound is to be, in (0, 1), the choice among ``choices`` paid for.
        choices: Length of the list of numbers of guesses.

    Guarantees:
        As ``one_run.epsilon_lower_bound``, for the largest of the list.

    Raises:
        InputError: A canary has no finite score or no coin, or a value is out of range.
    """
    check_delta(delta)
    outcomes = guess_outcomes(scores, included, choices=choices)
    largest = largest_epsilon_lower(
        outcomes[0].canaries, delta=delta, confidence=confidence, choices=choices
    )
    each = confidence_of_each(confidence, choices)
    return best_of(
        outcomes,
        lambda outcome: epsilon_lower_bound(
            canaries=outcome.canaries,
            guesses=outcome.guesses,
            correct=outcome.correct,
            delta=delta,
            confidence=each,
        ),
        confidence=confidence,
        choices=choices,
        largest=largest,
    )


def best_of(
    outcomes: tuple[Outcome, ...],
    bound: Callable[[Outcome], float],
    *,
    confidence: float,
    choices: int,
    largest: float,
) -> LowerBound:
    """Returns the largest of the bounds of some outcomes.

    Args:
        outcomes: One for each number of guesses.
        bound: Returns the lower bound of epsilon by one of them, at its part of the confidence.
        confidence: Of all of the bounds at once.
        choices: At how many numbers of guesses was looked.
        largest: The largest bound that so many canaries could have shown.
    """
    epsilons = tuple(bound(outcome) for outcome in outcomes)
    best = outcomes[int(np.argmax(epsilons))]
    return LowerBound(
        epsilon_lower=max(epsilons),
        guesses=best.guesses,
        correct=best.correct,
        canaries=best.canaries,
        confidence=confidence,
        choices=choices,
        largest_epsilon_lower=largest,
        outcomes=outcomes,
        epsilons=epsilons,
    )


def guess_counts(canaries: int, choices: int = CHOICES) -> tuple[int, ...]:
    """Returns at which numbers of guesses an audit looks: all of the canaries, then fewer.

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
    """Returns what comes of guessing by the scores, for each number of ``guess_counts``.

    The guesses are shared out between "in" and "out" as the scores fall into two groups
    (``_split``), so that a model which separates the two perfectly makes no wrong guess only
    because more or fewer than half of the coins fell on "in".

    Args:
        scores: As in ``best_lower_bound``.
        included: As there.
        choices: As there.

    Raises:
        InputError: A canary has no finite score or no coin, or there are no choices.
    """
    if choices < 1:
        raise InputError(f"choices must be at least 1, got {choices}.")
    right_in, right_out, split = _count_right(*checked_scores(scores, included))
    canaries = len(right_in) - 1
    outcomes = []
    for guesses in guess_counts(canaries, choices):
        guessed_in = round(guesses * (canaries - split) / canaries)
        correct = int(right_in[guessed_in] + right_out[guesses - guessed_in])
        outcomes.append(Outcome(canaries=canaries, guesses=guesses, correct=correct))
    return tuple(outcomes)


def correct_guesses(
    scores: ArrayLike, included: ArrayLike, *, guessed_in: int, guessed_out: int
) -> Outcome:
    """Returns what comes of guessing "in" of the highest scores and "out" of the lowest.

    Args:
        scores: As in ``best_lower_bound``.
        included: As there.
        guessed_in: Of how many of the highest scores "in" is guessed.
        guessed_out: Of how many of the lowest "out" is.

    Raises:
        InputError: A canary has no finite score or no coin, or there are more guesses than
            canaries, or fewer than none.
    """
    right_in, right_out, _ = _count_right(*checked_scores(scores, included))
    canaries = len(right_in) - 1
    if min(guessed_in, guessed_out) < 0 or guessed_in + guessed_out > canaries:
        raise InputError(
            f"guessed_in ({guessed_in}) and guessed_out ({guessed_out}) must be at least 0 and "
            f"together at most the number of canaries ({canaries})."
        )
    correct = int(right_in[guessed_in] + right_out[guessed_out])
    return Outcome(canaries=canaries, guesses=guessed_in + guessed_out, correct=correct)


def checked_scores(scores: ArrayLike, included: ArrayLike) -> tuple[Scores, Coins]:
    """Returns scores and coins as arrays.

    Raises:
        InputError: A score is missing or not finite, a coin is missing or no boolean, or there are
            no canaries.
    """
    numbers, coins = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if coins.ndim != 1 or coins.dtype != np.bool_ or len(coins) == 0:
        raise InputError("the coins must be a row of at least one boolean, one for each canary.")
    if numbers.shape != coins.shape:
        raise InputError(
            f"there are {numbers.size} scores of {coins.size} canaries; every canary needs one."
        )
    unusable = np.flatnonzero(~np.isfinite(numbers))
    if len(unusable):
        first = unusable[0]
        raise InputError(
            f"the score of canary {first} is {numbers[first]}, as of {len(unusable) - 1} others; "
            "every canary needs a finite score."
        )
    return numbers, coins


def _count_right(
    scores: Scores, included: Coins
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Returns how many are right of the first k guesses of "in", of "out", and the split.

    The last key of a sort leads; the first decides among equal scores, the wrong guesses first.
    """
    highest_first = np.lexsort((included, -scores))
    lowest_first = np.lexsort((~included, scores))
    right_in = np.concatenate([[0], np.cumsum(included[highest_first])])
    right_out = np.concatenate([[0], np.cumsum(~included[lowest_first])])
    return right_in, right_out, _split(scores[lowest_first])


def _split(ascending: Scores) -> int:
    """Returns how many of the scores count as low: where the widest gap near the middle is.

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
