import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dpft.cli.main import main


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        ("crash", 1, "ZeroDivisionError"),
        ("corrupt", 3, "dpft: error: the ledger is broken.\n"),
        ("interrupt", 130, "dpft: interrupted\n"),
        ("terminate", 143, "dpft: terminated\n"),
    ],
)
def test_every_outcome_has_its_exit_code_and_leaves_no_empty_folder(
    fake: ModuleType, capsys: pytest.CaptureFixture[str], outcome: str, code: int, error: str
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["fake", "privacy.eps=3", f"outcome={outcome}"]) == code
    assert error in capsys.readouterr().err
    assert list(Path().iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_reader_that_goes_away_ends_the_command_without_a_traceback() -> None:
    program = (
        "import sys; from dpft.cli.signals import exit_code_of_command;"
        "sys.exit(exit_code_of_command(lambda: print('x' * 10**6) or 0))"
    )
    command = f"{sys.executable} -c {shlex.quote(program)} | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == "dpft: error: the reader of the output has gone.\n"
