"""SIGTERM as a request: the step that it comes in is finished before the run ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TERMINATED = 143
"""Exit code of a run that SIGTERM ended."""


@contextmanager
def termination_requests() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether SIGTERM has come, which in the block ends nothing.

    Only the main thread is told of signals; elsewhere the answer is always no.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)
