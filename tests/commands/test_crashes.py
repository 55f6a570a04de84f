"""A crash says where it happened; what it says of a record is for the owner alone."""

import errno
import stat
from pathlib import Path
from threading import Event

import pytest

from dpft import errors
from dpft.cli.commands import subcommand
from dpft.commands.exit_codes import crash_kept, where
from dpft.errors import InputError, note_records_read
from dpft.run_folder import TRACEBACK


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process that has read records; the flag of this one stays as it is."""
    monkeypatch.setattr(errors, "_records_were_read", Event())
    note_records_read()


def crash() -> None:
    try:
        {}["Qzxcause"]
    except KeyError as error:
        again = RuntimeError("Qzxmessage")
        again.add_note("Qzxnote")
        raise again from error


def caught() -> RuntimeError:
    with pytest.raises(RuntimeError) as info:
        crash()
    return info.value


def test_places_and_kinds_are_shown_and_messages_are_not() -> None:
    text = where(caught())
    assert text.index("KeyError\n") < text.index("RuntimeError\n")
    assert text.count("in crash\n") == 2
    assert "Qzxmessage" not in text and "Qzxnote" not in text
    assert "KeyError: " not in text


def test_an_error_that_hides_where_it_came_from_keeps_hiding_it() -> None:
    error = caught()
    error.__suppress_context__, error.__cause__ = True, None
    assert "KeyError" not in where(error)


def test_the_whole_text_is_kept_for_the_owner_alone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), crash_kept(tmp_path / "run"):
        crash()
    path = tmp_path / "run" / TRACEBACK
    for word in ("Qzxcause", "RuntimeError: Qzxmessage", "Qzxnote"):
        assert word in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_file_that_has_a_withheld_message_is_named_by_the_block_that_wrote_it(
    tmp_path: Path,
) -> None:
    with (
        pytest.raises(RuntimeError) as info,
        crash_kept(tmp_path / "job"),
        crash_kept(tmp_path / "run"),
    ):
        crash()
    path = tmp_path / "run" / TRACEBACK
    assert where(info.value).endswith(
        f"(message withheld because it may quote a record; see {path})"
    )
    assert not (tmp_path / "job").exists()
    assert where(caught()).endswith("; it could not be written anywhere)")


def test_before_records_are_read_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_records_were_read", Event())
    with pytest.raises(RuntimeError), crash_kept(tmp_path / "run"):
        crash()
    assert not (tmp_path / "run").exists()


def test_a_refusal_or_a_full_disk_leaves_nothing_and_a_folder_that_cannot_be_made_changes_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError), crash_kept(tmp_path / "run"):
        raise InputError("refused.")
    with pytest.raises(OSError), crash_kept(tmp_path / "run"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match="Qzxmessage"), crash_kept(tmp_path / "file" / "run"):
        crash()


def test_the_commands_that_read_no_records() -> None:
    names = ("train", "eval", "generate", "plan", "report", "account", "export", "doctor")
    reading = [name for name in names if subcommand(name).reads_records]
    assert reading == ["train", "eval", "generate", "plan", "report"]
    assert [name for name in names if subcommand(name).reads_rows_alone] == ["train", "plan"]
