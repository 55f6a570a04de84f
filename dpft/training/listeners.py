"""What others may hear of a step while it is taken: public things only (docs/design.md, rule 7).

A listener is told no loss, no norm and no drawn size. That a step has ended it hears at once, so it
must show no time of a single one: see ``tracking``.
"""

from dataclasses import dataclass
from typing import Protocol

from dpft.privacy.accounting.curve import SpentEpsilon


@dataclass(frozen=True, kw_only=True)
class PublicStep:
    """What anybody may know of a step that was taken."""

    step: int
    """Steps that the weights have taken, this one included."""
    last_step: int
    """The step to end at."""
    learning_rate: float
    """The step's learning rate; where parameters have rates of their own, that of the first."""
    epsilon: SpentEpsilon | None
    """Upper bound of what all noisy steps so far have spent; None for a non-private run."""


class StepEvaluation(Protocol):
    """Scores the model between two steps, on all processes of a run together."""

    def begin(self, step: int, last_step: int, epsilon: SpentEpsilon | None) -> None:
        """Hears that steps are taken from now on, ``step`` of them taken before.

        Args:
            step: Steps that the weights have taken.
            last_step: The step to end at.
            epsilon: What is spent by then; None for a non-private run, and beside the first.
        """

    def after_step(self, step: int, epsilon: SpentEpsilon | None) -> None:
        """Scores the model where it is due, leaving it and all randomness as they were."""


class StepListener(Protocol):
    """Hears of every step of a session."""

    def begin(self, step: int) -> None:
        """Hears that steps are taken from now on, ``step`` of them taken before."""

    def after_step(self, public: PublicStep) -> None:
        """Hears that a step was taken; must not raise, since the step is spent."""
