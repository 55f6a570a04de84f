"""Listeners of a training session: what they are told of a step, and at which steps it may show.

They are told public things only: no loss, no norm and no drawn size (docs/design.md, rule 7). How
long a step takes follows the size of its drawn batch, which is private, and everything that appears
while training (a bar that moves, a line, a point of a tracker, a head that a witness is handed)
tells a time. So all of it appears at boundaries of windows alone, ten steps apart or more. Ten
steps mitigate: epsilon does not cover times. The last head, that of the ledger's closing line, is
handed over when the run has been evaluated.
"""

from dataclasses import dataclass
from typing import Protocol

from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.ledger import Ledger
from dpft.privacy.witness import Handover


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


WINDOW = 10
"""Fewest steps whose time together may show."""


@dataclass(frozen=True)
class StepWindows:
    """The boundaries at which a session may show how far it has come.

    They lie on one grid of the run's steps, multiples of ``every``, not of the session's: sessions
    that take the same steps again, with the same batches, would else show windows that differ by a
    few steps. A last window below ``every`` joins the one before.

    Guarantees:
        The time between two boundaries, of whatever sessions and of whatever ``every``, is that of
        whole windows of ten steps or more, which do not overlap; so is every sum and difference of
        such times. When a session itself begins off the grid or breaks off is not hidden here.

    Attributes:
        start: Steps taken before the session.
        last_step: The step to end at.
        every: Steps of a window; rounded up to whole tens, so that all boundaries are on one grid.
    """

    start: int
    last_step: int
    every: int = WINDOW

    @property
    def starts_on_grid(self) -> bool:
        """Whether the session's start is a boundary, from which a rate may be counted."""
        return self._is_boundary(self.start)

    @property
    def first(self) -> int | None:
        """The first step that shows; None where fewer than a window are left."""
        # off the grid, the one after the next boundary may be the last and near it
        within = range(self.start + 1, min(self.last_step, self.start + 3 * self._width) + 1)
        return next((step for step in within if self.shows(step)), None)

    def shows(self, step: int) -> bool:
        """Returns whether it may show that ``step`` steps are taken, now that they are."""
        return self._is_boundary(step) and step - self.start >= self._width

    @property
    def _width(self) -> int:
        return -(-max(self.every, WINDOW) // WINDOW) * WINDOW

    def _is_boundary(self, step: int) -> bool:
        left = self.last_step - step
        return left == 0 or (step % self._width == 0 and left >= self._width)


class HeadWitness:
    """Listens to the steps of a session and hands over some heads."""

    def __init__(self, handover: Handover, ledger: Ledger, *, every: int | None) -> None:
        """Prepares to hand over the heads of a session.

        Args:
            handover: To the witness.
            ledger: The run's, being written.
            every: Steps between two checkpoints; heads lie at least so far apart.
        """
        self._handover, self._ledger = handover, ledger
        self._every = max(WINDOW, every or 0)
        self._start = 0

    def begin(self, step: int) -> None:
        """See ``StepListener``."""
        self._start = step

    def after_step(self, public: PublicStep) -> None:
        """See ``StepListener``; heads follow the windows that everything shown follows."""
        if StepWindows(self._start, public.last_step, every=self._every).shows(public.step):
            self._handover.hand_over(self._ledger.lines, self._ledger.head)
