"""Interfaces that follow the steps of a training run, and windows of ten steps for public output.

They are told public things only: no loss, no norm and no drawn size (docs/dev/design.md, rule 7).
How long a step takes follows the size of its drawn batch, which is private, and everything that
appears while training (a bar that moves, a line, a point of a tracker) tells a time. So all of it
appears at boundaries of windows alone, ten steps apart or more. Ten steps mitigate: epsilon does
not cover times. ``StepProgress`` is the bar and the lines: steps, epsilon so far, the time taken
and to go, and a rate from the expected batch size.
"""

import logging
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.accounting.summary import round_up
from dpft.startup import TRAINING, end_startup, show_startup_stage
from dpft.training.progress_record import WINDOW, ProgressLine

logger = logging.getLogger(__name__)


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
        """Hears that steps are taken from now on, ``step`` of them taken and so much spent before.

        Epsilon is None for a non-private run, and on all processes but the first.
        """

    def after_step(self, step: int, epsilon: SpentEpsilon | None) -> None:
        """Score the model where it is due, leaving it and all randomness as they were."""


class StepListener(Protocol):
    """Hears of every step of a session."""

    def begin(self, step: int) -> None:
        """Hears that steps are taken from now on, ``step`` of them taken before."""

    def after_step(self, public: PublicStep) -> None:
        """Hears that a step was taken; must not raise, since the step is spent."""


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
    def first_shown_step(self) -> int | None:
        """The first step that shows; None where fewer than a window are left."""
        # off the grid, the one after the next boundary may be the last and near it
        within = range(self.start + 1, min(self.last_step, self.start + 3 * self._width) + 1)
        return next((step for step in within if self.shows(step)), None)

    def shows(self, step: int) -> bool:
        """Return whether it may show that ``step`` steps are taken, now that they are."""
        return self._is_boundary(step) and step - self.start >= self._width

    @property
    def _width(self) -> int:
        return -(-max(self.every, WINDOW) // WINDOW) * WINDOW

    def _is_boundary(self, step: int) -> bool:
        left = self.last_step - step
        return left == 0 or (step % self._width == 0 and left >= self._width)


DECIMALS = 4
"""Of epsilon, as the run's end states it: with fewer, rounded up, it would seem to fall there."""
LOG_LINES = 10
"""Lines a whole run logs, at most, where there is no terminal to draw a bar on."""


def draws_bars(console: Console) -> bool:
    """Return whether bars can be drawn: on a terminal, or in a notebook that has widgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class StepProgress:
    """Shows lines of progress.jsonl: a bar on a terminal, a few log lines elsewhere."""

    def __init__(self, *, steps: int, expected_batch_size: int, counted: str = "examples") -> None:
        """Prepare to show ``steps`` steps.

        The rate is counted by the public ``expected_batch_size``, a number of what ``counted``
        says.
        """
        self._steps, self._counted = steps, counted
        self._expected_batch_size = expected_batch_size
        self._timed, self._seconds = 0, 0.0
        """The session's steps whose duration is known."""
        self._fastest, self._slowest = math.inf, 0.0
        """Seconds per step of the fastest and the slowest window of ten steps or more."""
        self._lines = StepWindows(0, steps)
        console = Console(stderr=True)
        self._draws = draws_bars(console)
        columns = TextColumn("training"), BarColumn(), TextColumn("{task.fields[note]}")
        self._bar = Progress(
            *columns, console=console, disable=not self._draws, refresh_per_second=1
        )
        self._task = self._bar.add_task("training", total=steps, note="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        end_startup()

    def begin(self, step: int) -> None:
        """See ``ProgressReader``."""
        self._lines = StepWindows(step, self._steps, every=math.ceil(self._steps / LOG_LINES))
        windows = StepWindows(step, self._steps)
        first = windows.first_shown_step
        waits = "" if first is None else f"first update at step {first}"
        self._bar.update(self._task, completed=step, note=waits)
        if windows.starts_on_grid:
            self._start()
            return
        show_startup_stage(TRAINING)
        if step < self._steps:
            update = "no progress is shown" if first is None else f"first update at step {first}"
            logger.info(
                "steps %d to %d: %s (durations of fewer than ten steps are private)",
                *(step + 1, self._steps, update),
            )

    def show(self, line: ProgressLine, last_step: int, *, again: bool = False) -> None:
        """See ``ProgressReader``."""
        self._start()
        note = self._note(line)
        counted = ", ".join(filter(None, [f"{line.step}/{self._steps}", note]))
        self._bar.update(self._task, completed=line.step, note=counted)
        if not self._draws and self._lines.shows(line.step):
            logger.info("step %d of %d%s", line.step, self._steps, f", {note}" if note else "")

    def _note(self, line: ProgressLine) -> str:
        """Return epsilon so far, the rate, and the time taken and to go."""
        parts = []
        if line.epsilon is not None:
            parts.append(f"epsilon {round_up(line.epsilon, DECIMALS):.{DECIMALS}f}")
        if line.since is not None and line.seconds is not None:
            self._timed += line.step - line.since
            self._seconds += line.seconds
            step_seconds = self._seconds / self._timed
            parts.append(f"{self._expected_batch_size / step_seconds:.0f} {self._counted}/s")
            parts.append(f"{clock_time(self._seconds)} taken")
            parts.append(self._left(line, line.seconds / (line.step - line.since)))
        return ", ".join(parts)

    def _left(self, line: ProgressLine, step_seconds: float) -> str:
        """Return the time to go: on a terminal, a range from the fastest to the slowest window.

        One window says little of the next, so the range spans a fifth of it at least.
        """
        left = self._steps - line.step
        if not self._draws:
            return f"{clock_time(self._seconds / self._timed * left)} to go"
        self._fastest = min(self._fastest, 0.9 * step_seconds)
        self._slowest = max(self._slowest, 1.1 * step_seconds)
        return f"{clock_time(self._fastest * left)} to {clock_time(self._slowest * left)} to go"

    def _start(self) -> None:
        # Not before: how long a session took from an odd step, less how long one took from
        # another, would be the time of fewer than ten.
        end_startup()
        self._bar.start()


def clock_time(seconds: float) -> str:
    """Return a time as a clock shows it, such as 4:05 or 1:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
