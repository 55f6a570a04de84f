"""Run a function as a job of a command, for tests of exit codes."""

from collections.abc import Callable

from dpft.commands.exit_codes import ExitStatus, errors_reported


def exit_code_of_job(job: Callable[[], None], *, withhold: bool = True) -> int:
    """Run a job, report its error as ``errors_reported`` does, and return its exit code."""
    status = ExitStatus()
    with errors_reported(status, withhold=withhold):
        job()
    return status.exit_code
