"""How a whole command ends: an interrupt, SIGTERM or an exit on its way becomes an exit code."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dpft.runs.exit_codes import FAILED, exit_code_of_job, say
from dpft.training.termination import TERMINATED

INTERRUPTED = 130


def exit_code_of_command(command: Callable[[], int]) -> int:
    """Run a whole command under dpft's signal handling and return its exit code."""
    codes: list[int] = []
    try:
        with termination_as_exit():
            # The job itself, which reads records, ends inside; what is left is Hydra's.
            failed = exit_code_of_job(lambda: codes.append(_flushed(command)), withhold=False)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except SystemExit as exit_:
        return exit_code_of_exit(exit_)
    return failed or codes[0]


def _flushed(command: Callable[[], int]) -> int:
    """Returns a command's code once all its output is out: whether anybody reads it shows then."""
    code = command()
    sys.stdout.flush()
    return code


def exit_code_of_exit(exit_: SystemExit) -> int:
    """Returns the code a ``SystemExit`` carries; a text counts as a failure and is said."""
    if exit_.code is None or isinstance(exit_.code, int):
        return exit_.code or 0
    say(str(exit_.code))
    return FAILED


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM into ``SystemExit(143)`` inside the block, so that open files are closed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set signal handlers.
        return
    before = signal.signal(signal.SIGTERM, _exit_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_terminated(_number: int, _frame: FrameType | None) -> None:
    say("terminated")
    raise SystemExit(TERMINATED)
