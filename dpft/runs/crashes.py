"""What a crash may say: where it happened in the code, never of which record.

The message of an error that nobody foresaw may quote what it failed on: a word that a table lacks,
a record's length, the memory that a drawn batch asked for. A terminal is copied into bug reports
and kept by batch systems, so there stand the places in the code and the kinds of the errors alone;
the whole text goes to the run's private/ (docs/design.md, rule 7), and the terminal names that
file. Before a process has read any record, nothing is withheld and nothing kept.
"""

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpft.errors import DpftError, InputError, records_were_read
from dpft.files import write_text
from dpft.run_folder import TRACEBACK, private_path

FULL_OR_FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a user can mend, and no crash: a full disk, or a folder that may not be written to."""


class _KeptIn(str):
    """The note on an error that says where its whole text lies; the one note that is shown."""


def where(error: BaseException) -> str:
    """Returns the traceback of an error and of those it came from, without their messages.

    The last line names the file that has them, where ``crash_kept`` wrote one.
    """
    parts = []
    for each in reversed(_chain(error)):
        places = traceback.format_tb(each.__traceback__)
        begin = ["Traceback (most recent call last):\n"] if places else []
        parts.append("".join([*begin, *places, f"{type(each).__qualname__}\n"]))
    kept = next(iter(_kept_in(error)), "it could not be written anywhere")
    withheld = f"(its message is withheld, since it may quote a record; {kept})"
    return "\nand from that, or while it was handled:\n\n".join(parts) + withheld


@contextmanager
def crash_kept(folder: Path) -> Iterator[None]:
    """Keeps the whole traceback of a crash in the block for the owner alone, and lets it pass.

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
        if isinstance(error, OSError) and error.errno in FULL_OR_FORBIDDEN:
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
    """Returns an error and those it came from, the last first, as Python would show them."""
    chain = [error]
    while True:
        last = chain[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or before in chain:
            return chain
        chain.append(before)
