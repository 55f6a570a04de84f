"""What a user sees while a model writes or is scored: how much of it is done.

No text, and no time unless the work follows from public numbers alone (docs/design.md, rule 7). How
many records a private split has is private, too: of one, a bar knows tenths alone, and the lines of
a pipe are the same however many records there are and however long they take: one at the end of
each kind of work.
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

from dpft.evaluation.answers import OnProgress
from dpft.startup import end_startup
from dpft.training.listeners import clock_time, draws_bars

PARTS = 10
"""Parts of a work that a bar shows, where its size is not to be seen."""
FIFTHS = 5
"""Parts of a work that a line is logged of."""
FORETOLD_AFTER = 5.0
"""Seconds after which the time that a work will take is said, though no tenth of it is done."""
LOG_LINES, APART = 10, 1.0
"""Most lines that one scoring logs, and the least seconds between two of them."""
logger = logging.getLogger(__name__)


@contextmanager
def batch_progress(
    doing: str = "", *, counts: bool = True, timed: bool = False, shown: bool = True
) -> Iterator[OnProgress]:
    """Gives a function that moves a bar on a terminal, and elsewhere logs a few lines.

    Args:
        doing: What the lines begin with.
        counts: Whether a bar may show how much there is.
        timed: Whether bar and lines may show the time to go: how much work there is and how long it
            takes depend on no private record.
        shown: Whether this process shows anything.
    """
    if not shown:
        yield lambda what, done, total: None
        return
    console = Console(stderr=True)
    if not draws_bars(console):
        yield _logged(doing, PARTS if timed else FIFTHS if counts else 1, timed=timed)
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


def _logged(
    doing: str, parts: int, *, timed: bool = False, clock: Callable[[], float] | None = None
) -> OnProgress:
    """Returns a function that logs each of some equal parts of a work once it is done.

    Of one part it logs the end of each kind of work, once, however often that kind begins anew.

    Args:
        doing: What the lines begin with.
        parts: How many.
        timed: Whether lines say the time to go, the first of them before any part is done.
        clock: In seconds.
    """
    seconds = clock or time.monotonic
    begun, is_foretold = seconds(), False
    logged: list[float] = []
    reached: dict[str, int] = {}

    def show(what: str, done: int, total: int) -> None:
        nonlocal is_foretold
        now, part = seconds(), parts * done // total
        left = clock_time((now - begun) / done * (total - done)) if timed and done else ""
        if left and not is_foretold and now - begun >= FORETOLD_AFTER and part < 1:
            is_foretold = True
            form = "%s%d %s to score, about %s to go"
            logger.info(form, _begin(doing), total - done, what, left)
        before = reached.get(what, 0)
        # the next part of a split begins anew
        reached[what] = max(before, part) if parts == 1 else part % parts
        apart = not logged or now - logged[-1] >= APART
        if part <= before or (parts > 1 and not (apart and len(logged) < LOG_LINES)):
            return
        logged.append(now)
        to_go = f", about {left} to go" if left and part < parts else ""
        logger.info("%s%d %% of %s%s", _begin(doing), 100 * part // parts, what, to_go)

    return show


def _begin(doing: str) -> str:
    return f"{doing}: " if doing else ""
