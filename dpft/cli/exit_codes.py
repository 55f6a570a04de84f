"""How a command ends: every outcome to one exit code and what stderr says of it.

Exit codes: 0 done, 1 failed while running, 2 bad input, 3 corrupted state, 130 interrupted,
143 terminated. Tracebacks go to stderr, without what the errors say where records were read.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dpft.cli.crashes import FULL_OR_FORBIDDEN, where
from dpft.errors import DpftError
from dpft.training.termination import TERMINATED

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


def exit_code_of_job(job: Callable[[], None], *, withhold: bool = True) -> int:
    """Run one job, say on stderr what went wrong, and return its exit code.

    An interrupt or a termination passes through: it ends a whole sweep, not one job of it.

    Args:
        job: The work.
        withhold: Whether the message of an error that nobody foresaw is left out, since it may
            quote a record; the traceback is shown all the same.
    """
    try:
        job()
    except DpftError as error:
        say(f"error: {error}")
        return error.exit_code
    except BrokenPipeError:
        return _close_standard_output()
    except OSError as error:
        if error.errno not in FULL_OR_FORBIDDEN:
            _show(error, withhold)
            return FAILED
        say(f"error: {error.filename or 'a file'} could not be written: {error.strerror}.")
        return FAILED
    except Exception as error:
        _show(error, withhold)
        return FAILED
    return 0


def exit_code_of_command(command: Callable[[], int]) -> int:
    """Run a whole command under dpft's signal handling and return its exit code."""
    codes: list[int] = []
    try:
        with termination_as_exit():
            # The job itself, which reads records, ends inside; what is left is Hydra's.
            failed = exit_code_of_job(lambda: codes.append(command()), withhold=False)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except SystemExit as exit_:
        return exit_code_of_exit(exit_)
    return failed or codes[0]


def exit_code_of_exit(exit_: SystemExit) -> int:
    """Returns the code a ``SystemExit`` carries; a text counts as a failure and is said."""
    if exit_.code is None or isinstance(exit_.code, int):
        return exit_.code or 0
    say(str(exit_.code))
    return FAILED


def say(text: str) -> None:
    """Print one line on stderr, marked as dpft's."""
    print(f"dpft: {text}", file=sys.stderr)


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


def _show(error: Exception, withhold: bool) -> None:
    text = where(error) if withhold else "".join(traceback.format_exception(error))
    print(text.rstrip("\n"), file=sys.stderr)


def _close_standard_output() -> int:
    """Say that nobody reads on (``dpft ... | head``), and keep the final flush from failing too."""
    say("error: the reader of the output has gone.")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _exit_terminated(_number: int, _frame: FrameType | None) -> None:
    say("terminated")
    raise SystemExit(TERMINATED)
