"""The errors that dpft raises for users, each with its exit code.

The command line prints their message without a traceback. Every other exception is a bug in dpft
and keeps its traceback.

Every function that a command calls can raise these errors. A docstring lists an error only if a
caller has to handle it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

_records_were_read = Event()


def note_records_read() -> None:
    """Note that, from now on, the message of an unexpected error may quote a record."""
    _records_were_read.set()


def records_were_read() -> bool:
    """Return whether this process has read records, in any of its jobs."""
    return _records_were_read.is_set()


class DpftError(Exception):
    """Base class of errors that end a command with a message and without a traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Fault:
    """One reason why input is rejected.

    >>> print(Fault("train.steps must be at least 1, got 0.", hint="train.steps=1000"))
    train.steps must be at least 1, got 0. Try: train.steps=1000
    """

    message: str
    """The fault and its reason, in at most two sentences."""
    key: str | None = None
    """The configuration key, argument, column or file that the message is about."""
    value: Any = field(default=None, compare=False)
    """The rejected value."""
    hint: str | None = None
    """Input that fixes the fault when pasted, printed after the message."""

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} Try: {self.hint}"


class InputError(DpftError, ValueError):
    """Invalid input or configuration: one or more faults, each printed on its own line.

    Args:
        faults: The faults, or messages of faults.
        key: Key of the fault, if ``faults`` are messages.
        value: Value of the fault, if ``faults`` are messages.
        hint: Hint of the fault, if ``faults`` are messages.
    """

    exit_code = 2

    def __init__(
        self,
        *faults: Fault | str,
        key: str | None = None,
        value: Any = None,
        hint: str | None = None,
    ) -> None:
        self.faults = tuple(
            fault if isinstance(fault, Fault) else Fault(fault, key, value, hint)
            for fault in faults
        )
        super().__init__(*self.faults)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


class Faults:
    """Collector of faults from several checks, to report all of them in a single error.

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
        """Collect the faults of an ``InputError`` in the block, and continue after the block."""
        try:
            yield
        except InputError as error:
            self.found += error.faults

    def refuse(self) -> None:
        """Raise ``InputError`` with all collected faults, if there are any."""
        if self.found:
            raise InputError(*dict.fromkeys(self.found))


class RunError(DpftError, RuntimeError):
    """Error that ends a run: a failed self-check, non-finite weights, a full disk."""

    exit_code = 1


class StateError(DpftError, RuntimeError):
    """Error for corrupted state on disk: a broken ledger, a damaged checkpoint."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of any library means that memory was insufficient.

    Some checks run a model on other rows to find out whether it supports them. They must not
    mistake this error for a failure of the model.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in words)


class SaidElsewhere(DpftError):
    """Raised in a process when another process of the run has failed; rank 0 reports the cause.

    Attributes:
        kind: Name of the class of the original error.
        exit_code: Exit code of the command.
        to_say: Message that this process reports; None for no message.
    """

    def __init__(self, kind: str, exit_code: int, to_say: str | None = None) -> None:
        super().__init__(to_say or f"another process of the run ended with {kind}.")
        self.kind, self.exit_code, self.to_say = kind, exit_code, to_say
