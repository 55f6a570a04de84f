"""All processes of a run but the first keep silent: what there is to say, the first one says."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

PATIENCE = 5.0
"""Seconds that a process leaves the first one to say of an error what both may have found."""
_voices: list[TextIO] = []


def is_beside_first() -> bool:
    """Returns whether this process was started beside the first one of a run."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return rank.isdecimal() and int(rank) > 0 and size.isdecimal() and int(size) > 1


@contextmanager
def silent_beside_first() -> Iterator[None]:
    """Sends whatever a process beside the first prints in the block to nobody.

    Libraries print, too, also from C++: so it is the file descriptors that lead nowhere. An error
    that only this process knows of is said by ``voice``.
    """
    if not is_beside_first():
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = open(os.devnull, "w")  # noqa: SIM115 (never closed: a logger may keep it)
    with os.fdopen(kept[1], "w") as spoken:
        _voices.append(spoken)
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        try:
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield
        finally:
            _voices.remove(spoken)
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
            os.close(kept[0])


@contextmanager
def without_logging() -> Iterator[None]:
    """Lets nothing in the block log anything."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def voice() -> TextIO:
    """Returns where an error is said: stderr, also where everything else is silent."""
    return _voices[-1] if _voices else sys.stderr


def let_first_speak() -> None:
    """Waits, in a process beside the first, for the first one to say what is wrong.

    What is wrong with words is found by every process at once, and torchrun ends the others as
    soon as one has ended. What is wrong here alone is said here, a moment later.
    """
    if _voices:
        time.sleep(PATIENCE)
