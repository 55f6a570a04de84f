import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpft.cli.main import main
from tests.slowness import slow


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        ("crash", 1, "ZeroDivisionError"),
        *slow(
            ("corrupt", 3, "dpft: error: the ledger is broken.\n"),
            ("interrupt", 130, "dpft: interrupted\n"),
            ("terminate", 143, "dpft: terminated\n"),
        ),
    ],
)
def test_every_outcome_has_its_exit_code_and_leaves_no_empty_folder(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str], outcome: str, code: int, error: str
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["fake", "privacy.eps=3", f"outcome={outcome}"]) == code
    assert error in capsys.readouterr().err
    left = [path for path in Path().rglob("*") if path.is_file()]
    # A crash after records were read keeps its message for the owner alone.
    assert [path.parent.name for path in left] == ["private"] * (outcome == "crash")
    assert left or list(Path().iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.slow
@pytest.mark.parametrize("letters", [10, 10**6])
def test_a_reader_that_goes_away_ends_the_command_quietly_as_sigpipe_does(letters: int) -> None:
    """What fits into the pipe is written when all has been said, which must not fail either."""
    program = (
        "import sys, time\nfrom dpft.commands.exit_codes import ExitStatus, command_outcome\n"
        "outcome = ExitStatus()\nwith command_outcome(outcome):\n"
        f"    time.sleep(0.5)\n    print('x' * {letters})\nsys.exit(outcome.exit_code)"
    )
    command = f"{sys.executable} -c {shlex.quote(program)} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("141\n", "")
