"""The transparency log of a ledger: heads published to a witness, beyond its owner's reach.

Whoever owns a run's folder could cut or rewrite all of it. A head that was handed over earlier is
beyond their reach: the ledger must still begin with the lines that it is the hash of. The witness
is a file elsewhere, one JSON object a line, or a program such as a timestamping client, given the
same line on its standard input. It is told what the ledger's first line names the run by, the
number of lines and the head, all of them public. A witness that fails costs a warning and never a
step.

Which witness is the business of the command line that trains: a folder that was received must not
name a program to be run.
"""

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dpft.errors import InputError, StateError
from dpft.files import HANDED_HEADS, sync_folder
from dpft.privacy.ledger import LedgerRecord
from dpft.records.form import Misfit, as_json, read_record, write_record
from dpft.records.ledger import HandedCounts, HandedFile, WitnessLine, heads_of

SECONDS = 30.0
"""After which a witness's program is given up."""
logger = logging.getLogger(__name__)


class Witness(Protocol):
    """Somebody who keeps heads of ledgers out of their owners' reach."""

    @property
    def name(self) -> str:
        """What a report calls it: no path, and no argument, which may be secret."""

    def check(self, folder: Path) -> None:
        """Refuses, before a step is taken, what cannot work."""

    def take(self, line: str) -> None:
        """Hands over one line.

        Raises:
            OSError: It was not taken.
            subprocess.SubprocessError: It was not taken.
        """


class WitnessFile:
    """A file elsewhere, such as on a share that others keep; several runs may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """See ``Witness``."""
        return f"file {self.path.name}"

    def check(self, folder: Path) -> None:
        """See ``Witness``."""
        path = self.path.resolve()
        if path.is_relative_to(folder.resolve()):
            raise InputError(
                f"privacy.witness must be a file elsewhere, got {str(self.path)!r} in the run's own"
                " folder, where it shows nothing that the ledger does not."
            )
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InputError(
                f"privacy.witness must be a file that can be written, got {str(self.path)!r}; make"
                " its folder, or give a program as a list: privacy.witness=[PROGRAM,ARGUMENT]."
            )

    def take(self, line: str) -> None:
        """Appends the line and waits until it is on disk."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            torn = bool(size) and os.pread(descriptor, 1, size - 1) != b"\n"
            # One write, so that lines of runs that share the file do not mix.
            os.write(descriptor, (("\n" if torn else "") + line + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_folder(self.path.resolve().parent)


class WitnessProgram:
    """A program that is run with the line on its standard input, without a shell."""

    def __init__(self, words: tuple[str, ...], *, seconds: float = SECONDS) -> None:
        self._words, self._seconds = words, seconds

    @property
    def name(self) -> str:
        """See ``Witness``."""
        return f"program {Path(self._words[0]).name}"

    def check(self, folder: Path) -> None:
        """See ``Witness``."""
        if shutil.which(self._words[0]) is None:
            raise InputError(
                f"privacy.witness must name a program that can be run, got {self._words[0]!r}; give"
                " its path, or a file as one word: privacy.witness=FILE."
            )

    def take(self, line: str) -> None:
        """Runs the program, which has taken the line if it ends with 0 in time."""
        subprocess.run(
            self._words,
            input=line + "\n",
            text=True,
            stdout=subprocess.DEVNULL,  # Standard output is for results.
            timeout=self._seconds,
            check=True,
        )


class Handover:
    """Hands a run's heads to a witness, over all its sessions, and counts them in witness.json."""

    def __init__(self, witness: Witness, folder: Path, *, run_id: str) -> None:
        """Goes on counting the heads of a run.

        Raises:
            StateError: What was handed over before cannot be read.
        """
        self._witness, self._path = witness, folder / HANDED_HEADS
        known = read_handed(folder)
        self.run_id = run_id
        ours = known.witnesses if known is not None and known.run == run_id else {}
        self._witnesses = {witness.name: HandedCounts(), **ours}
        self._write()

    def hand_over(self, lines: int, head: str) -> None:
        """Hands over one head; a witness that fails, or a full disk, costs a warning."""
        name = self._witness.name
        count = self._witnesses[name]
        line = WitnessLine(run=self.run_id, lines=lines, head=head)
        try:
            self._witness.take(json.dumps(as_json(line), sort_keys=True))
        except (OSError, subprocess.SubprocessError) as error:
            count = replace(count, failed=count.failed + 1)
            reason = type(error).__name__  # Its words may hold the program's arguments.
            logger.warning(
                "privacy.witness: %s did not take the ledger's head (%s); the run goes on",
                name, reason,
            )  # fmt: skip
        else:
            count = replace(count, heads=count.heads + 1, lines=lines)
        self._witnesses[name] = count
        try:
            self._write()
        except OSError as error:
            logger.warning("%s could not be written: %s", self._path, error.strerror)

    def _write(self) -> None:
        write_record(self._path, HandedFile(run=self.run_id, witnesses=self._witnesses))


def make_witness(given: str | tuple[str, ...]) -> Witness:
    """Returns the witness that ``privacy.witness`` names: a file, or a program's words."""
    return (
        WitnessFile(Path(given).expanduser()) if isinstance(given, str) else WitnessProgram(given)
    )


def read_handed(folder: Path) -> HandedFile | None:
    """Returns the run's name at its witnesses and how many heads each has; None without one.

    Raises:
        InputError: witness.json is of another schema version.
        StateError: It is damaged.
    """
    path = folder / HANDED_HEADS
    return read_record(path, HandedFile) if path.exists() else None


def check_witnessed(ledger: LedgerRecord, folder: Path, file: Path) -> int:
    """Holds a ledger against the heads that a file of a witness has of its run.

    Returns:
        The most lines that the file has a head of: so many the ledger had, and still has.

    Raises:
        InputError: The run has no name, or the file has no head of it.
        StateError: The ledger lacks lines that the file has a head of, or has others.
    """
    name = ledger.run_id
    if name is None:
        raise InputError(
            f"witness needs a run whose ledger has a line, got {str(folder)!r}; drop it."
        )
    heads = _heads_of(name, file)
    if not heads:
        raise InputError(
            f"witness must be a file with heads of the run {name}, got {str(file)!r}, which has"
            " none; give the file that privacy.witness named."
        )
    _check_heads(ledger, folder, file, heads)
    return max(lines for lines, _ in heads)


def check_going_on(
    ledger: LedgerRecord, folder: Path, witness: Witness, run_id: str | None = None
) -> None:
    """Refuses to go on with a ledger that lacks lines of which a witness's file has a head.

    Args:
        ledger: What it says.
        folder: The run's.
        witness: Who may have heads of it.
        run_id: What a checkpoint names the run by, for a ledger that has no line.
    """
    name = ledger.run_id or run_id
    if name is not None and isinstance(witness, WitnessFile) and witness.path.exists():
        _check_heads(ledger, folder, witness.path, _heads_of(name, witness.path))


def _check_heads(
    ledger: LedgerRecord, folder: Path, file: Path, heads: Sequence[tuple[int, str]]
) -> None:
    for lines, head in heads:
        if not 0 <= lines <= ledger.lines or ledger.heads[lines] != head:
            got = f"{ledger.lines} lines" if lines > ledger.lines else ledger.heads[lines]
            raise StateError(
                f"the ledger of {folder} must have the head {head} after line {lines}, as {file}"
                f" has it, got {got}; it was cut, replaced or written anew. Put it back as it was."
            )


def _heads_of(run: str, file: Path) -> list[tuple[int, str]]:
    """Returns lines and head of each entry of a run; a line that broke off is none."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"witness must be a file that can be read, got {str(file)!r} ({error.strerror})."
        ) from error
    try:
        return [(entry.lines, entry.head) for entry in heads_of(run, text)]
    except Misfit as misfit:
        raise StateError(
            f"{file} has a line of the run {run} that is no head: {misfit}; put it back as it was."
        ) from None
