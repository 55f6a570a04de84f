"""The errors a user can mend, each with the exit code the command line gives it.

They stand apart from ``ValueError`` so that the command line can print one sentence for what the
user wrote and keep the traceback for what dpft did wrong.
"""


class DpftError(Exception):
    """Base of the errors that end a command with one sentence and no traceback."""

    exit_code = 1


class InputError(DpftError, ValueError):
    """Bad input or configuration: names the key, the value, what is allowed and the way out."""

    exit_code = 2


class RunError(DpftError, RuntimeError):
    """A run that cannot go on: a failed self-check, non-finite weights, a full disk."""

    exit_code = 1


class StateError(DpftError, RuntimeError):
    """Corrupted state on disk: a broken ledger, a damaged checkpoint."""

    exit_code = 3
