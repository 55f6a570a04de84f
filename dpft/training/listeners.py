"""Interfaces that follow the steps of a training run, and windows of ten steps for public output.

Listeners receive only public information: no loss, no norm and no batch size (docs/dev/design.md,
rule 7). The duration of a step depends on the size of its batch, which is private. Any output
during training reveals a time, whether it is an update of a bar, a log line or a point of a
tracker. Output therefore appears only at window boundaries, which are at least ten steps apart.
Windows of ten steps mitigate this leak, but epsilon does not cover times. ``StepProgress`` draws
the bar and logs lines with steps, current epsilon, elapsed time, remaining time, and a rate based
on the expected batch size.
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
    """Public information about a step that was taken."""

    step: int
    """Number of steps that the weights have taken, including this one."""
    last_step: int
    """Number of the last step to take."""
    learning_rate: float
    """Learning rate of the step; if parameter groups have different rates, that of the
    first group."""
    epsilon: SpentEpsilon | None
    """Upper bound of the epsilon spent by all noisy steps so far; None for a non-private run."""


class StepEvaluation(Protocol):
    """Interface for scoring the model between two steps, on all processes of a run together."""

    def begin(self, step: int, last_step: int, epsilon: SpentEpsilon | None) -> None:
        """Begin a session after ``step`` steps, which have spent ``epsilon``.

        Epsilon is None for a non-private run, and on all processes except rank 0.
        """

    def after_step(self, step: int, epsilon: SpentEpsilon | None) -> None:
        """Score the model if an evaluation is due; keep the model and random states unchanged."""


class StepListener(Protocol):
    """Interface for objects that are notified of every step of a session."""

    def begin(self, step: int) -> None:
        """Begin a session, before which ``step`` steps were taken."""

    def after_step(self, public: PublicStep) -> None:
        """Process a step that was taken; must not raise, because the step's epsilon is spent."""


@dataclass(frozen=True)
class StepWindows:
    """The boundaries at which a session may show its progress.

    All boundaries are multiples of ``every``, counted from the start of the run, not of the
    session. Otherwise, sessions that repeat the same steps with the same batches would show windows
    that differ by a few steps. A last window shorter than ``every`` is merged with the window
    before it.

    Guarantees:
        The time between two boundaries is the duration of whole, non-overlapping windows of ten
        steps or more. This holds for all sessions, for all values of ``every``, and for all sums
        and differences of such times. This class does not hide when a session is interrupted, or
        when it starts between two boundaries (off the grid).

    Attributes:
        start: Number of steps taken before the session.
        last_step: Number of the last step to take.
        every: Number of steps of a window, rounded up to a multiple of ten, so that all boundaries
            are on one grid.
    """

    start: int
    last_step: int
    every: int = WINDOW

    @property
    def starts_on_grid(self) -> bool:
        """Whether the start of the session is a boundary, from which a rate may be measured."""
        return self._is_boundary(self.start)

    @property
    def first_shown_step(self) -> int | None:
        """The first step that is shown; None if less than one window remains."""
        # If the session starts off the grid, the next boundary is too close, and the last step may
        # replace the boundary after it.
        within = range(self.start + 1, min(self.last_step, self.start + 3 * self._width) + 1)
        return next((step for step in within if self.shows(step)), None)

    def shows(self, step: int) -> bool:
        """Return whether the completion of ``step`` steps may be shown."""
        return self._is_boundary(step) and step - self.start >= self._width

    @property
    def _width(self) -> int:
        return -(-max(self.every, WINDOW) // WINDOW) * WINDOW

    def _is_boundary(self, step: int) -> bool:
        left = self.last_step - step
        return left == 0 or (step % self._width == 0 and left >= self._width)


DECIMALS = 4
"""Decimals of epsilon, as in the summary of the run. With fewer decimals, rounded up, epsilon would
seem to decrease in that summary."""
LOG_LINES = 10
"""Maximum number of lines that a run logs if it cannot draw a progress bar."""


def draws_bars(console: Console) -> bool:
    """Return whether bars can be drawn: on a terminal, or in a notebook with widgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class StepProgress:
    """Display of progress.jsonl lines: a bar on a terminal, a few log lines elsewhere."""

    def __init__(self, *, steps: int, expected_batch_size: int, counted: str = "examples") -> None:
        """Prepare to show ``steps`` steps.

        The rate is computed from the public ``expected_batch_size``, in units of ``counted``.
        """
        self._steps, self._counted = steps, counted
        self._expected_batch_size = expected_batch_size
        self._timed, self._seconds = 0, 0.0
        """Number of this session's steps whose duration is known; ``_seconds`` is the total
        duration of these steps."""
        self._fastest, self._slowest = math.inf, 0.0
        """Seconds per step of the fastest and of the slowest window of ten steps or more."""
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
        """Return epsilon so far, the rate, the elapsed time and the remaining time."""
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
        """Return the remaining time; on a terminal, a range from the fastest to the slowest window.

        One window is a poor estimate of the next. The range therefore extends to at least 10% below
        and above each window.
        """
        left = self._steps - line.step
        if not self._draws:
            return f"{clock_time(self._seconds / self._timed * left)} to go"
        self._fastest = min(self._fastest, 0.9 * step_seconds)
        self._slowest = max(self._slowest, 1.1 * step_seconds)
        return f"{clock_time(self._fastest * left)} to {clock_time(self._slowest * left)} to go"

    def _start(self) -> None:
        # Do not start the bar off the grid. The difference between the elapsed times of two
        # sessions would be the duration of fewer than ten steps.
        end_startup()
        self._bar.start()


def clock_time(seconds: float) -> str:
    """Return a time in clock format, such as 4:05 or 1:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
