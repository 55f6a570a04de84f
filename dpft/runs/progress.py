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

from dpft.evaluation.scored import OnProgress
from dpft.phases import end_phases
from dpft.training.progress import clock_time, draws_bars

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
        if timed:
            yield _logged_tenths(doing)
        else:
            yield _logged_fifths(doing) if counts else _logged_ends(doing)
        return
    amount = MofNCompleteColumn() if counts else TaskProgressColumn()
    bars: dict[str, TaskID] = {}
    to_go = [TimeRemainingColumn(), TextColumn("to go")] if timed else []
    end_phases()
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


def _logged_fifths(doing: str, clock: Callable[[], float] = time.monotonic) -> OnProgress:
    """Returns a function that logs how much of a public split is done, now and then."""
    logged: list[float] = []
    reached: dict[str, int] = {}

    def show(what: str, done: int, total: int) -> None:
        part = FIFTHS * done // total
        news = part > reached.get(what, 0)
        # the next part of a split begins anew
        reached[what] = part % FIFTHS
        if news and len(logged) < LOG_LINES and (not logged or clock() - logged[-1] >= APART):
            logger.info("%s%d %% of %s", _begin(doing), 100 * part // FIFTHS, what)
            logged.append(clock())

    return show


def _logged_tenths(doing: str) -> OnProgress:
    """Returns a function that logs every tenth of work of public size, with the time to go.

    It also logs how long all of it will take, as soon as that is known.
    """
    logged: dict[str, int] = {}
    begun, is_foretold = time.monotonic(), False

    def show(what: str, done: int, total: int) -> None:
        nonlocal is_foretold
        parts = PARTS * done // total
        elapsed = time.monotonic() - begun
        left = clock_time(elapsed / done * (total - done)) if done else ""
        if left and not is_foretold and elapsed >= FORETOLD_AFTER and parts < 1:
            is_foretold = True
            form = "%s%d %s to score, about %s to go"
            logger.info(form, _begin(doing), total - done, what, left)
        for part in range(logged.get(what, 0) + 1, parts + 1):
            to_go = f", about {left} to go" if left and part < PARTS else ""
            logger.info("%s%d %% of %s%s", _begin(doing), 100 * part // PARTS, what, to_go)
        # the next part of a split begins anew
        logged[what] = parts % PARTS

    return show


def _logged_ends(doing: str) -> OnProgress:
    """Returns a function that logs the end of each kind of work on a private split, once."""
    logged: set[str] = set()

    def show(what: str, done: int, total: int) -> None:
        if done == total and what not in logged:
            logger.info("%s100 %% of %s", _begin(doing), what)
            logged.add(what)

    return show


def _begin(doing: str) -> str:
    return f"{doing}: " if doing else ""
