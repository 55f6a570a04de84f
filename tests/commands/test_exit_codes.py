"""Every outcome of a job has one exit code, and stderr says of it what it may."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from dpft import errors
from dpft.commands import exit_codes as exit_codes_module
from dpft.commands.exit_codes import READER_GONE, crash_kept
from dpft.errors import (
    DpftError,
    InputError,
    RunError,
    SaidElsewhere,
    StateError,
    note_records_read,
)
from tests.commands.test_crashes import crash
from tests.job_exit_codes import exit_code_of_job


def raising(error: BaseException) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "code"), [(InputError, 2), (RunError, 1), (StateError, 3), (DpftError, 1)]
)
def test_what_a_user_can_mend_is_one_line_and_the_code_of_its_kind(
    capsys: pytest.CaptureFixture[str], error: type[DpftError], code: int
) -> None:
    assert exit_code_of_job(raising(error("x must be 1."))) == code
    assert capsys.readouterr() == ("", "dpft: error: x must be 1.\n")


@pytest.mark.parametrize(("file", "named"), [("state.json", "state.json"), (None, "a file")])
def test_a_full_disk_is_one_line_that_names_the_file(
    capsys: pytest.CaptureFixture[str], file: str | None, named: str
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", file)
    assert exit_code_of_job(raising(full)) == 1
    said = capsys.readouterr().err
    assert said == f"dpft: error: {named} could not be written: No space left on device.\n"


def test_a_name_that_is_too_long_is_bad_input_and_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be that of an image in a private table; nothing of it is kept as a crash, either."""

    def job() -> None:
        with crash_kept(tmp_path):
            (tmp_path / ("ada" * 100)).is_file()

    monkeypatch.setattr(errors, "_records_were_read", Event())
    note_records_read()
    assert exit_code_of_job(job) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dpft: error: a file's name must be at most 255 bytes long")
    assert "ada" not in line and not list(tmp_path.iterdir())


def test_another_error_of_the_system_is_a_crash(capsys: pytest.CaptureFixture[str]) -> None:
    note_records_read()
    assert exit_code_of_job(raising(OSError(errno.EIO, "Qzxmessage"))) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and "Qzxmessage" not in said


@pytest.mark.parametrize("withhold", [True, False])
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_what_an_error_says_is_shown_where_no_record_was_read(
    withhold: bool,
    read: bool,
    beside: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes beside the first read none themselves, and are sent them."""
    monkeypatch.setattr(errors, "_records_were_read", Event())
    monkeypatch.setattr(exit_codes_module, "is_other_rank", lambda: beside)
    if read:
        note_records_read()
    assert exit_code_of_job(crash, withhold=withhold) == 1
    hidden = withhold and (read or beside)
    assert ("Qzxmessage" in capsys.readouterr().err) is not hidden


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_what_ends_a_whole_sweep_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        exit_code_of_job(raising(error))


def test_where_the_reader_has_gone_what_is_left_to_write_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "out").open("w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        assert exit_code_of_job(raising(BrokenPipeError())) == READER_GONE == 141
        file.write("the last lines")
    assert (tmp_path / "out").read_text() == ""
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("to_say", "waits"), [(None, 1), ("a sentence", 0)])
def test_a_process_that_says_nothing_leaves_the_first_one_time_to_speak(to_say, waits, monkeypatch):
    """Torchrun ends all others, the one that speaks too, as soon as one has ended."""
    calls = []
    monkeypatch.setattr(exit_codes_module, "wait_for_rank_0", lambda: calls.append(None))

    def job():
        raise SaidElsewhere("RunError", 1, to_say)

    assert exit_code_of_job(job) == 1
    assert len(calls) == waits
