"""Progress bars on a terminal, and log lines in a pipe, for work on many records.

Bars and lines show no text. They show no time unless the amount of work depends only on public
numbers. The number of records in a private split is private. For such a split, a bar shows only
tenths. In a pipe, one line is logged at the end of each kind of work, regardless of the number of
records.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from dpft.evaluation.evaluate import OnProgress
from dpft.startup import end_startup
from dpft.training.listeners import draws_bars

logger = logging.getLogger(__name__)

PARTS = 10
"""Number of segments that a bar shows if the amount of work is private."""
FIFTHS = 5
"""Number of segments of the work; the end of each segment is logged."""
APART = 1.0
"""Minimum number of seconds between two lines."""


@contextmanager
def batch_progress(
    doing: str = "", *, counts: bool = True, timed: bool = False, shown: bool = True
) -> Iterator[OnProgress]:
    """Yield a function that updates a progress bar on a terminal, and logs a few lines elsewhere.

    Args:
        doing: Prefix of the log lines.
        counts: Whether a bar may show the amount of work.
        timed: Whether a bar may show the remaining time. This requires that the amount of work and
            its duration depend on no private record.
        shown: Whether this process shows anything.
    """
    if not shown:
        yield lambda what, done, total: None
        return
    console = Console(stderr=True)
    if not draws_bars(console):
        yield _logged(doing, FIFTHS if counts else 1)
        return
    amount = MofNCompleteColumn() if counts else TaskProgressColumn()
    bars: dict[str, TaskID] = {}
    to_go = [TimeRemainingColumn(), TextColumn("to go")] if timed else []
    end_startup()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        *to_go,
        console=console,
        refresh_per_second=1,
    ) as progress:

        def show(what: str, done: int, total: int) -> None:
            if not counts:
                done, total = PARTS * done // total, PARTS
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)

        yield show
        for task in progress.tasks:  # Counts of work are estimates; finished work shows 100 %.
            progress.update(task.id, completed=task.total)


def _logged(doing: str, parts: int, *, clock: Callable[[], float] = time.monotonic) -> OnProgress:
    """Return a function that logs the end of each of ``parts`` equal segments of the work.

    If there is one segment, log the end of each kind of work once, no matter how often that kind
    begins again. Otherwise, lines are at least a second apart.
    """
    start, last = f"{doing}: " if doing else "", -APART
    reached: dict[str, int] = {}

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        before, part, now = reached.get(what, 0), parts * done // total, clock()
        # The count starts again with the next subset of a split.
        reached[what] = max(before, part) if parts == 1 else part % parts
        if part > before and (parts == 1 or now - last >= APART):
            last = now
            logger.info("%s%d %% of %s", start, 100 * part // parts, what)

    return show
