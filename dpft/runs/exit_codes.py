"""How a job ends: every outcome to one exit code and what stderr says of it.

Exit codes: 0 done, 1 failed while running, 2 bad input, 3 corrupted state, 141 where nobody reads
the output any more; of a whole command also 130 interrupted and 143 terminated. Tracebacks go to
stderr, without what the errors say where records were read.
"""

import os
import sys
import traceback
from collections.abc import Callable

from dpft.config.keys import in_keys
from dpft.errors import DpftError, SaidElsewhere, records_were_read
from dpft.parallel.silence import is_beside_first, let_first_speak, voice
from dpft.runs.crashes import FULL_OR_FORBIDDEN, where

FAILED = 1
BAD_INPUT = 2
READER_GONE = 141
"""As a shell has it of a command that SIGPIPE ended: ``dpft … | head``."""


def exit_code_of_job(job: Callable[[], None], *, withhold: bool = True) -> int:
    """Run one job, say on stderr what went wrong, and return its exit code.

    An interrupt or a termination passes through: it ends a whole sweep, not one job of it.

    Args:
        job: The work.
        withhold: Whether the message of an error that nobody foresaw is left out once records
            were read, since it may quote one; the traceback is shown all the same.
    """
    try:
        job()
    except SaidElsewhere as error:
        if error.to_say is None:
            let_first_speak()
        else:
            say(f"error: {in_keys(error.to_say)}")
        return error.exit_code
    except DpftError as error:
        let_first_speak()
        print(f"dpft: error: {in_keys(str(error))}", file=voice(), flush=True)
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


def say(text: str) -> None:
    """Print one line on stderr, marked as dpft's."""
    print(f"dpft: {text}", file=sys.stderr)


def _show(error: Exception, withhold: bool) -> None:
    # Records reach the processes beside the first by other ways than ``dpft.data``.
    withheld = withhold and (records_were_read() or is_beside_first())
    text = where(error) if withheld else "".join(traceback.format_exception(error))
    print(text.rstrip("\n"), file=voice(), flush=True)


def _close_standard_output() -> int:
    """Ends quietly where nobody reads on (``dpft … | head``); the final flush must not fail too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE
