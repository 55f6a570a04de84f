import os
import textwrap
import time

import pytest

from dpft.privacy.accounting.limits import LimitedProcess, Limits
from dpft.privacy.accounting.mechanism import AccountantError, AccountantTimeout

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
HANG = "import sys, time\nsys.stdin.readline()\nwhile True: time.sleep(1)"
LEAVE = "import sys\nsys.stdin.readline()\nsys.exit(7)"


def raise_signal(name):
    return f"import signal, sys\nsys.stdin.readline()\nsignal.raise_signal(signal.{name})"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Returns a function that makes a limited process of a program's text."""
    monkeypatch.syspath_prepend(str(tmp_path))
    started = []

    def make(program, seconds=5.0, wall_seconds=60.0):
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        limits = Limits(seconds=seconds, wall_seconds=wall_seconds, grace=0.5)
        started.append(LimitedProcess("json", limits, module="program"))
        return started[-1]

    yield make
    for process in started:
        process.close()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_question_and_answer(start):
    process = start(ECHO)
    for value in (1, 2):
        process.ask({"upper": value})
        assert process.answer() == {"upper": value}


def test_an_error_comes_back_as_one(start):
    process = start(ECHO)
    process.ask({"error": "It needs more than 2 GiB of memory."})
    with pytest.raises(AccountantError, match="2 GiB"):
        process.answer()


def test_a_hanging_accountant_is_killed(start):
    process = start(HANG, wall_seconds=0.3)
    began = time.monotonic()
    process.ask({})
    pid = process._process.pid
    with pytest.raises(AccountantTimeout, match=r"timed out after 0.3 s\."):
        process.answer()
    assert time.monotonic() - began < 3
    assert not is_running(pid)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (raise_signal("SIGPROF"), "timed out after 5 s of processor time"),
        (raise_signal("SIGALRM"), "timed out after 60 s"),
        (LEAVE, "ended early .exit status 7"),
    ],
)
def test_a_dead_accountant_says_why_and_the_next_question_is_answered(start, program, reason):
    process = start(program)
    process.ask({})
    with pytest.raises(AccountantError, match=reason):
        process.answer()
    start(ECHO)
    process.ask({"upper": 1})
    assert process.answer() == {"upper": 1}


def test_close_ends_a_busy_child(start):
    process = start(HANG)
    process.ask({})
    pid = process._process.pid
    process.close()
    assert not is_running(pid)
