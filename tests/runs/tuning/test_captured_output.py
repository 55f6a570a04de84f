"""What is said inside the block is in the file, and nowhere else."""

import logging
import os
import stat
import sys
from pathlib import Path

import pytest

from dpft.runs.tuning import everything_to, owner_only


def test_prints_logs_and_what_c_code_writes_go_to_a_private_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    handlers = list(logging.getLogger().handlers)
    with everything_to(path):
        print("a print")
        print("an error", file=sys.stderr)
        logging.getLogger("dpft.x").warning("a log line")
        os.write(1, b"from C\n")
        os.write(2, b"from C, an error\n")
    print("after")
    assert logging.getLogger().handlers == handlers
    out, err = capfd.readouterr()
    assert (out, err) == ("after\n", "")
    lines = set(path.read_text().splitlines())
    assert lines == {"a print", "an error", "WARNING: a log line", "from C", "from C, an error"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_error_passes_and_output_is_as_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), everything_to(tmp_path / "log"):
        raise KeyboardInterrupt
    os.write(1, b"heard")
    assert capfd.readouterr().out == "heard"


def test_files_made_inside_are_the_owners_alone(tmp_path: Path) -> None:
    with owner_only():
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("")
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "folder" / "file").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) != 0o600
