"""What a user sees while a model writes or is scored: how much of it is done.

No text, and no time unless the work follows from public numbers alone (docs/design.md, rule 7). How
many records a private split has is private, too: of one, bar and lines know tenths alone, and the
lines are the same for any number of records.
"""

import logging
import time
from collections.abc import Iterator
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
from dpft.training.progress import clock_time, draws_bars

PARTS = 10
"""Parts of a work that are shown, where its size is not."""
FORETOLD_AFTER = 5.0
"""Seconds after which the time that a work will take is said, though no tenth of it is done."""
logger = logging.getLogger(__name__)


@contextmanager
def batch_progress(
    doing: str = "", *, counts: bool = True, timed: bool = False, shown: bool = True
) -> Iterator[OnProgress]:
    """Gives a function that moves a bar on a terminal, and elsewhere logs each tenth that is done.

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
        yield _logged_tenths(doing, timed=timed)
        return
    amount = MofNCompleteColumn() if counts else TaskProgressColumn()
    bars: dict[str, TaskID] = {}
    to_go = [TimeRemainingColumn(), TextColumn("to go")] if timed else []
    with Progress(
        TextColumn("{task.description}"), BarColumn(), amount, *to_go, console=console
    ) as progress:

        def show(what: str, done: int, total: int) -> None:
            if not counts:
                done, total = PARTS * done // total, PARTS
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)

        yield show


def _logged_tenths(doing: str, *, timed: bool) -> OnProgress:
    """Returns a function that logs every tenth of each kind of work, however few batches it has.

    Where times may be shown, it also logs how long all of it will take, as soon as that is known.
    """
    logged: dict[str, int] = {}
    begin = f"{doing}: " if doing else ""
    begun, is_foretold = time.monotonic(), False

    def show(what: str, done: int, total: int) -> None:
        nonlocal is_foretold
        parts = PARTS * done // total
        elapsed = time.monotonic() - begun
        left = clock_time(elapsed / done * (total - done)) if timed and done else ""
        if left and not is_foretold and elapsed >= FORETOLD_AFTER and parts < 1:
            is_foretold = True
            logger.info("%s%d %s to score, about %s to go", begin, total - done, what, left)
        for part in range(logged.get(what, 0) + 1, parts + 1):
            to_go = f", about {left} to go" if left and part < PARTS else ""
            logger.info("%s%d %% of %s%s", begin, 100 * part // PARTS, what, to_go)
        # the next part of a split begins anew
        logged[what] = parts % PARTS

    return show
