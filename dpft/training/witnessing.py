"""When a witness is handed the ledger's head while steps are taken (see ``privacy.witness``).

Whoever takes a head knows the time, and a step's time follows its drawn batch's size: so heads lie
ten steps apart or more, on the same grid of the run's steps as everything else that shows while
training (DESIGN trust rule 7). The last head, that of the closing line, is handed over when the
run has been evaluated.
"""

from dpft.privacy.ledger import Ledger
from dpft.privacy.witness import Handover
from dpft.training.listeners import PublicStep

WINDOW = 10
"""Fewest steps between two heads; more are whole tens."""


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
        self._width = -(-max(WINDOW, every or 0) // WINDOW) * WINDOW
        self._start = 0

    def begin(self, step: int) -> None:
        """See ``StepListener``."""
        self._start = step

    def after_step(self, public: PublicStep) -> None:
        """See ``StepListener``; a last window that is too short joins the one before."""
        left = public.last_step - public.step
        on_grid = left == 0 or (public.step % self._width == 0 and left >= self._width)
        if on_grid and public.step - self._start >= self._width:
            self._handover.hand_over(self._ledger.lines, self._ledger.head)
