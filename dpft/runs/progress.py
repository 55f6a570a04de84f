"""What a user sees while a model writes or is scored: how much of it is done.

No text and no time (docs/design.md, rule 7). How many records a private split has is private, too:
of one, bar and lines know tenths alone, and the lines are the same for any number of records.
"""

import logging
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
)

from dpft.evaluation.scored import OnProgress
from dpft.training.progress import draws_bars

PARTS = 10
"""Parts of a work that are shown, where its size is not."""
logger = logging.getLogger(__name__)


@contextmanager
def batch_progress(
    doing: str = "", *, counts: bool = True, shown: bool = True
) -> Iterator[OnProgress]:
    """Gives a function that moves a bar on a terminal, and elsewhere logs each tenth that is done.

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
        yield _logged_tenths(doing)
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


def _logged_tenths(doing: str) -> OnProgress:
    """Returns a function that logs every tenth of each kind of work, however few batches it has."""
    logged: dict[str, int] = {}
    begin = f"{doing}: " if doing else ""

    def show(what: str, done: int, total: int) -> None:
        parts = PARTS * done // total
        for part in range(logged.get(what, 0) + 1, parts + 1):
            logger.info("%s%d %% of %s", begin, 100 * part // PARTS, what)
        # the next part of a split begins anew
        logged[what] = parts % PARTS

    return show
