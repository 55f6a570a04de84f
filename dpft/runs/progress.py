"""What a user sees while a model writes or is scored: how much of it is done.

No text and no time (docs/design.md, rule 7). How many records a private split has is private, too:
of one, a bar knows tenths alone, and the lines of a pipe are the same however many records there
are and however long they take: one at the end of each kind of work.
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
)

from dpft.evaluation.scored import OnProgress
from dpft.training.progress import draws_bars

PARTS = 10
"""Parts of a work that a bar shows, where its size is not to be seen."""
FIFTHS = 5
"""Parts of a work that a line is logged of."""
LOG_LINES, APART = 10, 1.0
"""Most lines that one scoring logs, and the least seconds between two of them."""
logger = logging.getLogger(__name__)


@contextmanager
def batch_progress(
    doing: str = "", *, counts: bool = True, shown: bool = True
) -> Iterator[OnProgress]:
    """Gives a function that moves a bar on a terminal, and elsewhere logs a few lines.

    Args:
        doing: What the lines begin with.
        counts: Whether a bar may show how much there is.
        shown: Whether this process shows anything.
    """
    if not shown:
        yield lambda what, done, total: None
        return
    console = Console(stderr=True)
    if not draws_bars(console):
        yield _logged_fifths(doing) if counts else _logged_ends(doing)
        return
    amount = MofNCompleteColumn() if counts else TaskProgressColumn()
    bars: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"), BarColumn(), amount, console=console
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
