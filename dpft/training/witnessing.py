"""When a witness is handed the ledger's head while steps are taken (see ``privacy.witness``).

Whoever takes a head knows the time, and a step's time follows its drawn batch's size: so heads lie
ten steps apart or more, on the same grid of the run's steps as everything else that shows while
training (docs/design.md, rule 7). The last head, that of the closing line, is handed over when the
run has been evaluated.
"""

from dpft.privacy.ledger import Ledger
from dpft.privacy.witness import Handover
from dpft.training.listeners import PublicStep
from dpft.training.windows import WINDOW, StepWindows


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
