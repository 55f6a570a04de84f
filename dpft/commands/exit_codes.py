"""Exit codes and error messages for each way in which a command can end.

Exit codes: 0 success, 1 failure, 2 invalid input, 3 corrupted state, 141 closed output pipe. A
whole command can also end with 130 (interrupted) or 143 (terminated by SIGTERM).

The message of an unexpected error may quote private data. For example, a ``KeyError`` may quote a
word of a record, a shape error states the length of a record, and an out-of-memory error states how
much memory a sampled batch needs. Users copy terminal output into bug reports, and batch systems
store it. A traceback on the terminal therefore contains only code locations and error types. The
full traceback goes to the run's private/ (docs/dev/trust-rules.md, rule 7), and the terminal names
that file. Until a process has read a record, messages are shown in full and nothing is stored.
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
"""Error numbers that a user can fix: a full disk, or a folder without write permission."""
TOO_LONG = "a file's name must be at most 255 bytes long, got a longer one; give a shorter path."
"""Message for ``errno.ENAMETOOLONG``. It quotes no name, because the name may be from a record."""


class _KeptIn(str):
    """Note on an error that names the file with the full traceback; the only note that is shown."""


def where(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without their messages.

    The last line names the file with the messages if ``crash_kept`` wrote one.
    """
    parts = []
    for cause in reversed(_chain(error)):
        places = traceback.format_tb(cause.__traceback__)
        begin = ["Traceback (most recent call last):\n"] if places else []
        parts.append("".join([*begin, *places, f"{type(cause).__qualname__}\n"]))
    kept = next(iter(_kept_in(error)), "it could not be written anywhere")
    withheld = f"(message withheld because it may quote a record; {kept})"
    return "\nThe error above led to this error:\n\n".join(parts) + withheld


@contextmanager
def crash_kept(folder: Path) -> Iterator[None]:
    """Write the full traceback of a crash in the block to a private file, and re-raise the error.

    Nothing is written before records were read, or if an inner block has written the traceback.

    Args:
        folder: The folder of the run. Its private/ is created if necessary. If the folder is not
            writable, the traceback is lost.
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
            error.add_note(_KeptIn(f"see {path}"))
        raise


def _kept_in(error: BaseException) -> list[_KeptIn]:
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, _KeptIn)]


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error followed by its causes, in the order in which Python follows them."""
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
"""Exit code that a shell reports for a command ended by SIGPIPE, such as ``dpft … | head``."""


@dataclass
class ExitStatus:
    """Result of a job or of a whole command."""

    exit_code: int = 0


@contextmanager
def errors_reported(outcome: ExitStatus, *, withhold: bool = True) -> Iterator[None]:
    """Report an error of the block on stderr, and store its exit code in ``outcome``.

    Interrupts and terminations pass through, because they end a whole sweep and not only one job.

    Args:
        outcome: Receives the exit code of the job in the block.
        withhold: Whether to hide the message of an unexpected error after records were read,
            because the message may quote a record. The traceback is shown in any case.
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
    """Print one line on stderr with the prefix ``dpft:``."""
    print(f"dpft: {text}", file=sys.stderr)


def _show(error: Exception, withhold: bool) -> None:
    # Ranks other than 0 also receive records in ways that ``dpft.data`` does not notice.
    withheld = withhold and (records_were_read() or is_other_rank())
    text = where(error) if withheld else "".join(traceback.format_exception(error))
    print(text.rstrip("\n"), file=error_stream(), flush=True)


INTERRUPTED = 130


@contextmanager
def command_outcome(outcome: ExitStatus) -> Iterator[None]:
    """Run a whole command in the block, under dpft's signal handling.

    However the block ends, its exit code is stored in ``outcome``.
    """
    try:
        # The job, which reads records, reports its own errors. Errors that arrive here are Hydra's.
        with termination_as_exit(), errors_reported(outcome, withhold=False):
            yield
            sys.stdout.flush()  # A closed pipe raises an error only when output is flushed.
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
