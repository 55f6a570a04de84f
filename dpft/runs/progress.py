"""What a user sees while a model writes or is scored: how many inputs are done, and of how many.

Counts of an evaluation split or of prompts, no text and no time (docs/design.md, rule 7).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@contextmanager
def batch_progress() -> Iterator[OnProgress]:
    """Gives a function that moves a bar on stderr, one for each kind of work; a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)

        yield show
