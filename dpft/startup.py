"""Stages of a run's start (reading, loading, checking …), shown in one line of the terminal.

Reading, importing, loading, checking and encoding can take minutes without output for a large
model. Each stage calls ``show_startup_stage``, which does nothing if no line is drawn (in a pipe or
in a program). The line is redrawn once a second and does not depend on steps (docs/dev/design.md,
rule 7). The line is drawn without a library, because importing a progress bar library would itself
take a noticeable part of the start.

    with shown_startup():
        show_startup_stage(READING)
        ...
        end_startup()  # the progress bar of the steps follows
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Lock, Thread
from typing import TextIO

READING = "reading the records"
LIBRARIES = "loading the libraries"
PLANNING = "choosing the noise"
LOADING = "loading the model"
CHECKING = "checking the clipper"
ENCODING = "encoding the records"
TRAINING = "training"
PARTS = (READING, LIBRARIES, PLANNING, LOADING, CHECKING, ENCODING, TRAINING)
"""All stages in order; a run may skip some of them."""
EVERY = 1.0
"""Seconds between two updates."""
BAR = 24
"""Number of columns of the bar."""
ERASE = "\r\x1b[2K"


class StartupLine:
    """The line in the terminal that shows the stages of one run's start."""

    def __init__(self, stream: TextIO) -> None:
        """Prepare to draw on a terminal."""
        self._stream = stream
        self._began = time.monotonic()
        self._what: str | None = None
        self._lock, self._ended = Lock(), Event()
        self._thread = Thread(target=self._redraw, name="startup", daemon=True)

    def begin(self, what: str) -> None:
        """Show the current stage of the run, one of ``PARTS``."""
        with self._lock:
            is_new = self._what is None
            self._what = what
            if is_new:
                self._draw()
        if self._thread.ident is None:
            self._thread.start()

    def hide(self) -> None:
        """Erase the line until another stage begins."""
        with self._lock:
            self._erase()
            self._what = None

    def close(self) -> None:
        """Erase the line permanently."""
        self._ended.set()
        self.hide()

    def filter(self, record: logging.LogRecord) -> bool:
        """Erase the line before a log line is written; the next update draws it again."""
        with self._lock:
            self._erase()
        return True

    def text(self) -> str:
        """Return the line: a bar of completed stages, the current stage, and the elapsed time."""
        if self._what is None:
            return ""
        begun = PARTS.index(self._what) + 1
        done = BAR * (begun - 1) // len(PARTS)
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        full, empty = ("━", "─") if "utf" in (self._stream.encoding or "").lower() else ("#", "-")
        return f"{full * done}{empty * (BAR - done)} {self._what} {minutes}:{seconds:02d}"

    def _redraw(self) -> None:
        while not self._ended.wait(EVERY):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self._what is not None and not self._ended.is_set():
            self._stream.write(ERASE + self.text())
            self._stream.flush()

    def _erase(self) -> None:
        if self._what is not None:
            self._stream.write(ERASE)
            self._stream.flush()


_line: ContextVar[StartupLine | None] = ContextVar("startup", default=None)


@contextmanager
def shown_startup() -> Iterator[None]:
    """Show the stages of the run in the block until its steps begin, if stderr is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    line = StartupLine(sys.stderr)
    token = _line.set(line)
    # Only handlers that write to the same terminal.
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
    ]
    for handler in handlers:
        handler.addFilter(line)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(line)
        _line.reset(token)
        line.close()


def show_startup_stage(what: str) -> None:
    """Show the current stage of the run; see ``StartupLine.begin``."""
    line = _line.get()
    if line is not None:
        line.begin(what)


def end_startup() -> None:
    """Erase the line before other output is drawn."""
    line = _line.get()
    if line is not None:
        line.hide()
