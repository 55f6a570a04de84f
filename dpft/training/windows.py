"""Which steps of a session show that they have ended: never two that are fewer than ten apart.

How long a step takes follows the size of its drawn batch, which is private, and everything that
appears while training (a bar that moves, a line, a point of a tracker) tells a time
(docs/design.md, rule 7). So all of it appears at boundaries alone. Ten steps mitigate: epsilon does
not cover times.
"""

from dataclasses import dataclass

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
