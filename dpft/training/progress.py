"""What a user sees while training: public quantities only.

Steps, epsilon so far, the time taken and to go, and a rate from the expected batch size. How long a
single step took follows its private batch size, so bar and lines move at the boundaries of windows
of ten steps and more, and at no other time (docs/design.md, rule 7; see ``listeners``).
"""

import logging
import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.accounting.rounding import round_up
from dpft.startup import TRAINING, doing, end_startup
from dpft.training.listeners import StepWindows

logger = logging.getLogger(__name__)

DECIMALS = 4
"""Of epsilon, as the run's end states it: with fewer, rounded up, it would seem to fall there."""
LOG_LINES = 10
"""Lines a whole run logs, at most, where there is no terminal to draw a bar on."""


def draws_bars(console: Console) -> bool:
    """Returns whether bars can be drawn: on a terminal, or in a notebook that has widgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class StepProgress:
    """A bar on a terminal, a few log lines elsewhere."""

    def __init__(
        self,
        *,
        steps: int,
        expected_batch_size: int,
        epsilon_after: Callable[[int], SpentEpsilon] | None,
        taken: int = 0,
        counted: str = "examples",
        foretold: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares to show ``steps`` steps.

        Args:
            steps: The step to end at.
            expected_batch_size: Public size that the rate is counted by.
            epsilon_after: Upper bound of epsilon after a number of steps; None for a non-private
                run.
            taken: Steps of earlier sessions, which the rate is not of.
            counted: What that size is a number of.
            foretold: How long it will take, in words, until steps show.
            clock: Seconds, monotonic.
        """
        self._steps = steps
        self._expected_batch_size = expected_batch_size
        self._epsilon_after = epsilon_after
        self._counted = counted
        self._clock = clock
        self._windows = StepWindows(taken, steps)
        self._lines = StepWindows(taken, steps, every=math.ceil(steps / LOG_LINES))
        self._taken = taken
        self._marked: tuple[int, float] | None = None
        """The first step shown, and when: rates count from there."""
        console = Console(stderr=True)
        self._draws = draws_bars(console)
        columns = (
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Progress(
            *columns, console=console, disable=not self._draws, refresh_per_second=1
        )
        self._foretold = foretold
        waits = [foretold, *self._waits()]
        note = ", ".join(filter(None, waits))
        self._task = self._bar.add_task("training", total=steps, completed=taken, note=note)

    def __enter__(self) -> Self:
        if self._windows.starts_on_grid:
            self._begin(self._taken)
            return self
        doing(TRAINING, self._foretold)
        if self._taken < self._steps:
            self._say_what_is_silent()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        end_startup()

    def advance(self, step: int) -> None:
        """Shows that ``step`` steps are taken, if they end a window."""
        if not self._windows.shows(step):
            return
        if self._marked is None:
            self._begin(step)
        note = self.note(step)
        counted = ", ".join(filter(None, [f"{step}/{self._steps}", note]))
        self._bar.update(self._task, completed=step, note=counted)
        if not self._draws and self._lines.shows(step):
            logger.info("step %d of %d%s", step, self._steps, f", {note}" if note else "")

    def note(self, step: int) -> str:
        """Returns epsilon so far, the rate, time taken and to go, at a window's end.

        Epsilon is the bound that the run's end will state; until its accountant has it, none is
        shown: a looser one would seem to fall afterwards.
        """
        parts = []
        spent = None if self._epsilon_after is None else self._epsilon_after(step)
        if spent is not None and spent.settled:
            parts.append(f"epsilon {round_up(spent.epsilon, DECIMALS):.{DECIMALS}f}")
        if self._marked is not None and step > self._marked[0]:
            here, elapsed = step - self._marked[0], max(self._clock() - self._marked[1], 1e-9)
            parts.append(f"{here * self._expected_batch_size / elapsed:.0f} {self._counted}/s")
            parts.append(f"{clock_time(elapsed)} taken")
            parts.append(f"{clock_time(elapsed / here * (self._steps - step))} to go")
        return ", ".join(parts)

    def _begin(self, step: int) -> None:
        self._marked = (step, self._clock())
        # Not before: how long a session took from an odd step, less how long one took from
        # another, would be the time of fewer than ten.
        end_startup()
        self._bar.start()

    def _waits(self) -> list[str]:
        """Returns when the first step shows, unless none does."""
        first = self._windows.first
        return [] if first is None else [f"steps show from step {first} of {self._steps} on"]

    def _say_what_is_silent(self) -> None:
        first = self._windows.first
        shown = "no progress" if first is None else f"progress from step {first} on"
        logger.info(
            "steps %d to %d show %s: the times of fewer than ten steps would tell of their batches",
            self._taken + 1, self._steps, shown,
        )  # fmt: skip


def clock_time(seconds: float) -> str:
    """Returns a time as a clock shows it, such as 4:05 or 1:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
