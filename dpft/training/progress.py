"""What a user sees while training: public quantities only.

Steps, epsilon so far, and a rate and a time to go from the expected batch size. How long a single
step took follows its private batch size, so rates are averages over at least ten steps (DESIGN
trust rule 7).
"""

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dpft.privacy.accounting.rounding import round_up

logger = logging.getLogger(__name__)

MIN_STEPS_FOR_RATE = 10
LOG_LINES = 10
"""Lines a whole run logs where there is no terminal to draw a bar on."""


class StepProgress:
    """A bar on a terminal, a few log lines elsewhere."""

    def __init__(
        self,
        *,
        steps: int,
        expected_batch_size: int,
        epsilon_after: Callable[[int], float] | None,
        taken: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares to show ``steps`` steps.

        Args:
            steps: Steps planned.
            expected_batch_size: Public size that the examples per second are counted by.
            epsilon_after: Upper bound of epsilon after a number of steps; None for a non-private
                run.
            taken: Steps of earlier sessions, which the rate is not of.
            clock: Seconds, monotonic.
        """
        self._steps = steps
        self._expected_batch_size = expected_batch_size
        self._epsilon_after = epsilon_after
        self._taken = taken
        self._clock = clock
        self._console = Console(stderr=True)
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("training", total=steps, note="")
        self._start = clock()

    def __enter__(self) -> Self:
        self._start = self._clock()
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        """Shows that ``step`` steps are taken."""
        note = self.note(step)
        self._bar.update(self._task, completed=step, note=note)
        every = max(1, self._steps // LOG_LINES)
        if not self._console.is_terminal and (step % every == 0 or step == self._steps):
            logger.info("step %d of %d%s", step, self._steps, f", {note}" if note else "")

    def note(self, step: int) -> str:
        """Returns epsilon so far, examples per second and time to go."""
        parts = []
        if self._epsilon_after is not None:
            parts.append(f"epsilon at most {round_up(self._epsilon_after(step), 2):.2f}")
        here = step - self._taken
        if here >= MIN_STEPS_FOR_RATE:
            elapsed = max(self._clock() - self._start, 1e-9)
            parts.append(f"{here * self._expected_batch_size / elapsed:.0f} examples/s")
            parts.append(f"{_clock_time(elapsed / here * (self._steps - step))} to go")
        return ", ".join(parts)


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
