"""``histogram.tsv``: the words that reached the threshold, and their noisy counts; public."""

from collections.abc import Iterable
from pathlib import Path

from dpft.errors import InputError, StateError
from dpft.files import read_file
from dpft.privacy.ledger import Ledger, LedgerRecord, read_ledger
from dpft.run_folder import HISTOGRAM, LEDGER


def as_lines(words: Iterable[tuple[str, int]]) -> str:
    """Returns the file's text: a word, a tab and its count in each line."""
    return "".join(f"{word}\t{count}\n" for word, count in words)


def read_histogram(folder: Path) -> list[tuple[str, int]]:
    """Returns the words of a run's file and their counts.

    Raises:
        StateError: It is gone, or a line of it is damaged.
    """
    path = folder / HISTOGRAM
    try:
        lines = read_file(path).decode("utf-8").split("\n")[:-1]
        pairs = [line.split("\t") for line in lines]
        return [(word, int(count)) for word, count in pairs]
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is gone or damaged; put it back as it was.") from error


def close_ledger_of(folder: Path) -> None:
    """Closes the ledger of a histogram that is on disk, where the run broke off in between.

    The file is whole or not there, and its noise was drawn once, after the ledger's one line.

    Raises:
        StateError: The ledger is damaged.
    """
    path = folder / LEDGER
    if not path.exists() or not (folder / HISTOGRAM).exists():
        return
    record = read_ledger(path)
    if record.steps == 1 and not record.closed:
        with Ledger.reopen(path, record) as ledger:
            ledger.close()


def closed_ledger(folder: Path) -> LedgerRecord:
    """Returns the ledger of a histogram that was released.

    Raises:
        InputError: The folder is of no tokenizer's run, or the run broke off before its histogram
            was on disk.
        StateError: The ledger is damaged.
    """
    path = folder / LEDGER
    if not path.exists():
        raise InputError(
            f"resume must be the folder of a dpft tokenizer run, got {str(folder)!r}, which has no"
            f" {LEDGER}; give the folder that dpft tokenizer named."
        )
    ledger = read_ledger(path)
    if not ledger.steps:
        raise InputError(
            f"{path} has no whole step: the run broke off before it drew any noise, and spent"
            " nothing. Begin anew without resume, in another folder."
        )
    if not ledger.closed:
        raise InputError(
            f"{path} has the line of a histogram that was never written: the run broke off, and"
            " its epsilon stands spent. Begin anew without resume, and compose both by"
            " dpft account runs=[FIRST,SECOND]."
        )
    return ledger
