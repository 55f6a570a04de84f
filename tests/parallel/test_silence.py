"""What processes beside the first one say, which is nothing, and when they speak all the same."""

import os
import subprocess
import sys

from tests.parallel.silent_program import PROGRAM


def outcome(**environment: str) -> subprocess.CompletedProcess[str]:
    """Returns what a program says that prints by every way there is."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_first_process_speaks() -> None:
    done = outcome(RANK="0", WORLD_SIZE="2")
    assert sorted(done.stdout.split()) == ["child", "print"]
    assert done.stderr.split() == ["descriptor", "log", "dpft:", "error:", "wrong", "after"]
    assert done.returncode == 2


def test_another_process_says_nothing_but_the_error_that_it_ends_with() -> None:
    done = outcome(RANK="1", WORLD_SIZE="2")
    assert done.stdout == ""
    assert done.stderr.split() == ["waited", "dpft:", "error:", "wrong", "after"]
    assert done.returncode == 2


def test_one_process_alone_speaks() -> None:
    assert outcome(RANK="1", WORLD_SIZE="1").stdout != ""
