"""Map each way that a command can end to an exit code and a message on stderr.

Exit codes: 0 done, 1 failed while running, 2 bad input, 3 corrupted state, 141 where nobody reads
the output any more; of a whole command also 130 interrupted and 143 terminated (SIGTERM).

The message of an error that nobody foresaw may quote what it failed on: a word that a table lacks,
a record's length, the memory that a drawn batch asked for. A terminal is copied into bug reports
and kept by batch systems, so a traceback there has the places in the code and the kinds of the
errors alone; the whole text goes to the run's private/ (docs/dev/design.md, rule 7), and the
terminal names that file. Before a process has read any record, nothing is withheld and nothing
kept.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dpft.errors import DpftError, InputError, SaidElsewhere, records_were_read
from dpft.parallel.rank_environment import TERMINATED, error_stream, is_other_rank, wait_for_rank_0
from dpft.run_folder import TRACEBACK, private_path, write_text

FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a user can mend, and no crash: a full disk, or a folder that may not be written to."""
TOO_LONG = "a file's name must be at most 255 bytes long, got a longer one; give a shorter path."
"""Of ``errno.ENAMETOOLONG``, another one; it quotes no name, which may be from a record."""


class _KeptIn(str):
    """The note on an error that says where its whole text lies; the one note that is shown."""


def where(error: BaseException) -> str:
    """Return the traceback of an error and of those it came from, without their messages.

    The last line names the file that has them, where ``crash_kept`` wrote one.
    """
    parts = []
    for cause in reversed(_chain(error)):
        places = traceback.format_tb(cause.__traceback__)
        begin = ["Traceback (most recent call last):\n"] if places else []
        parts.append("".join([*begin, *places, f"{type(cause).__qualname__}\n"]))
    kept = next(iter(_kept_in(error)), "it could not be written anywhere")
    withheld = f"(its message is withheld, since it may quote a record; {kept})"
    return "\nand from that, or while it was handled:\n\n".join(parts) + withheld


@contextmanager
def crash_kept(folder: Path) -> Iterator[None]:
    """Keep the whole traceback of a crash in the block for the owner alone, and lets it pass.

    Nothing is kept before records were read, nor what an inner block has kept already.

    Args:
        folder: The run's; its private/ is made if need be. Where nothing can be written to it,
            the text is lost.
    """
    try:
        yield
    except (DpftError, BrokenPipeError):
        raise
    except Exception as error:
        mendable = (*FULL_OR_FORBIDDEN, errno.ENAMETOOLONG)
        if isinstance(error, OSError) and error.errno in mendable:
            raise
        if not records_were_read() or _kept_in(error):
            raise
        text = "".join(traceback.format_exception(error))
        with suppress(OSError, InputError):
            folder.mkdir(parents=True, exist_ok=True)
            path = private_path(folder, TRACEBACK)
            write_text(path, text, mode=0o600)
            error.add_note(_KeptIn(f"{path} has it"))
        raise


def _kept_in(error: BaseException) -> list[_KeptIn]:
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, _KeptIn)]


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those it came from, the last first, as Python would show them."""
    chain = [error]
    while True:
        last = chain[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or before in chain:
            return chain
        chain.append(before)


FAILED = 1
BAD_INPUT = 2
READER_GONE = 141
"""As a shell has it of a command that SIGPIPE ended: ``dpft … | head``."""


@dataclass
class ExitStatus:
    """How a job or a whole command ended."""

    exit_code: int = 0


@contextmanager
def errors_reported(outcome: ExitStatus, *, withhold: bool = True) -> Iterator[None]:
    """Report an error of the block on stderr, and put its exit code into ``outcome``.

    An interrupt or a termination passes through: it ends a whole sweep, not one job of it.

    Args:
        outcome: Of the job in the block.
        withhold: Whether to leave out the message of an unexpected error once records were read,
            because it may quote one; the traceback is shown all the same.
    """
    try:
        yield
    except SaidElsewhere as error:
        if error.to_say is None:
            wait_for_rank_0()
        else:
            from dpft.config.keys import in_keys

            say(f"error: {in_keys(error.to_say)}")
        outcome.exit_code = error.exit_code
    except DpftError as error:
        from dpft.config.keys import in_keys  # imports pydantic

        wait_for_rank_0()
        print(f"dpft: error: {in_keys(str(error))}", file=error_stream(), flush=True)
        outcome.exit_code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        outcome.exit_code = READER_GONE
    except OSError as error:
        outcome.exit_code = FAILED
        if error.errno == errno.ENAMETOOLONG:
            say(f"error: {TOO_LONG}")
            outcome.exit_code = BAD_INPUT
        elif error.errno in FULL_OR_FORBIDDEN:
            say(f"error: {error.filename or 'a file'} could not be written: {error.strerror}.")
        else:
            _show(error, withhold)
    except Exception as error:
        _show(error, withhold)
        outcome.exit_code = FAILED


def say(text: str) -> None:
    """Print one line on stderr, marked as dpft's."""
    print(f"dpft: {text}", file=sys.stderr)


def _show(error: Exception, withhold: bool) -> None:
    # Records reach the processes beside the first by other ways than ``dpft.data``.
    withheld = withhold and (records_were_read() or is_other_rank())
    text = where(error) if withheld else "".join(traceback.format_exception(error))
    print(text.rstrip("\n"), file=error_stream(), flush=True)


INTERRUPTED = 130


@contextmanager
def command_outcome(outcome: ExitStatus) -> Iterator[None]:
    """Run a whole command in the block, under dpft's signal handling.

    Whatever it ends with, its exit code is in ``outcome`` then.
    """
    try:
        # The job itself, which reads records, reports its errors inside; others are Hydra's.
        with termination_as_exit(), errors_reported(outcome, withhold=False):
            yield
            sys.stdout.flush()  # Only now an error shows that nobody reads it.
    except KeyboardInterrupt:
        say("interrupted")
        outcome.exit_code = INTERRUPTED
    except SystemExit as exit_:
        outcome.exit_code = exit_.code if isinstance(exit_.code, int) else 0
        if isinstance(exit_.code, str):
            say(exit_.code)
            outcome.exit_code = FAILED


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
