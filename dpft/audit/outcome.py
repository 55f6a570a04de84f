"""How many guesses about canaries were right: what every one-run test is given."""

from collections.abc import Callable
from dataclasses import dataclass

from dpft.errors import InputError

TOLERANCE = 1e-6
"""By how much a lower bound may lie below the largest value that the test rejects."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of guessing, for some canaries, whether each was included in the training.

    Attributes:
        canaries: How many there were, each included by a fair coin of its own.
        guesses: For how many of them "in" or "out" was guessed; of the rest nothing was said.
        correct: How many of the guesses were right.

    Raises:
        InputError: No guessing can come to these numbers.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if self.canaries < 1:
            raise InputError(f"canaries must be at least 1, got {self.canaries}.")
        if not 0 <= self.guesses <= self.canaries:
            raise InputError(
                f"guesses must be between 0 and the number of canaries ({self.canaries}), "
                f"got {self.guesses}."
            )
        if not 0 <= self.correct <= self.guesses:
            raise InputError(
                f"correct must be between 0 and the number of guesses ({self.guesses}), "
                f"got {self.correct}."
            )


def check_confidence(confidence: float) -> None:
    """Does nothing for the confidence of a test.

    Raises:
        InputError: It is outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence}; 0.95 is usual.")


def check_delta(delta: float) -> None:
    """Does nothing for a delta at which epsilon can be bounded from below.

    Raises:
        InputError: It is outside [0, 1).
    """
    if not 0 <= delta < 1:
        raise InputError(f"delta must be in [0, 1), got {delta}; take that of the run's report.")


def confidence_of_each(confidence: float, choices: int) -> float:
    """Returns at what confidence each of some bounds must hold for all of them to hold at once.

    Bonferroni's correction: whichever of them is then reported, for instance the largest, holds
    with the confidence asked for.

    >>> round(confidence_of_each(0.95, 10), 6)
    0.995

    Raises:
        InputError: The confidence is outside (0, 1), or there are no choices.
    """
    check_confidence(confidence)
    if choices < 1:
        raise InputError(f"choices must be at least 1, got {choices}.")
    return 1 - (1 - confidence) / choices


def largest_rejected(rejects: Callable[[float], bool]) -> float:
    """Returns the largest value from 0 on that a test rejects, 0 where it rejects none.

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
