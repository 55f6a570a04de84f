"""The errors that dpft raises for users, each with its exit code.

They stand apart from ``ValueError`` so that the command line can print one sentence for what the
user wrote and keep the traceback for what dpft did wrong.

Whatever carries out a command may raise them, and the sentence says the rest: docstrings there list
only those of which a caller has to know more than that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

_records_were_read = Event()


def note_records_read() -> None:
    """Says that from now on the message of an error that nobody foresaw may quote a record."""
    _records_were_read.set()


def records_were_read() -> bool:
    """Returns whether this process has read records, in whichever of its jobs."""
    return _records_were_read.is_set()


class DpftError(Exception):
    """Base of the errors that end a command with one sentence and no traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Fault:
    """One reason why input is rejected."""

    message: str
    """What is wrong and how to fix it, in at most two sentences."""
    key: str | None = None
    """Dotted key of the configuration or file."""
    value: Any = None
    """The value that is rejected."""
    hint: str | None = None
    """An argument that can be pasted, such as ``train.steps=1000``."""

    def __str__(self) -> str:
        return self.message


class InputError(DpftError, ValueError):
    """Bad input or configuration: names the key, the value, what is allowed and the way out.

    Faults that were found together are one error, which prints each on a line.
    """

    exit_code = 2

    def __init__(self, *faults: Fault | str) -> None:
        self.faults = tuple(fault if isinstance(fault, Fault) else Fault(fault) for fault in faults)
        super().__init__(*map(str, self.faults))

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


class Faults:
    """Gathers what several checks refuse, so that all of it is said at once.

    >>> faults = Faults()
    >>> with faults.gathering():
    ...     raise InputError("eps must be positive.")
    >>> with faults.gathering():
    ...     raise InputError("steps must be at least 1.")
    >>> faults.refuse()
    Traceback (most recent call last):
    dpft.errors.InputError: eps must be positive.
    steps must be at least 1.
    """

    def __init__(self) -> None:
        self.found: list[Fault] = []

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Keeps what the block refuses with ``InputError``, and goes on after it."""
        try:
            yield
        except InputError as error:
            self.found += error.faults

    def refuse(self) -> None:
        """Does nothing where nothing was refused."""
        if self.found:
            raise InputError(*dict.fromkeys(self.found))


class RunError(DpftError, RuntimeError):
    """A run that cannot go on: a failed self-check, non-finite weights, a full disk."""

    exit_code = 1


class StateError(DpftError, RuntimeError):
    """Corrupted state on disk: a broken ledger, a damaged checkpoint."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, whoever raised it.

    A check that tries whether a model runs on other rows must not take this for "it does not".
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in words)


class SaidElsewhere(DpftError):
    """An error of another process of the run: the first process alone says it.

    Attributes:
        kind: Name of the class of that error.
        exit_code: What it ends a command with.
        to_say: What this process says of it; None: nothing.
    """

    def __init__(self, kind: str, exit_code: int, to_say: str | None = None) -> None:
        super().__init__(to_say or f"another process of the run ended with {kind}.")
        self.kind, self.exit_code, self.to_say = kind, exit_code, to_say
