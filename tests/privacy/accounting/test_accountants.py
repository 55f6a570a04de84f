"""The accountants in their processes: answers are kept, and limits end what takes too long."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

from dpft.errors import InputError
from dpft.privacy.accounting.accountants import Accountants, LimitedProcess, Limits, headline_order
from dpft.privacy.accounting.mechanism import AccountantError, AccountantTimeout, SampledGaussian

MECHANISM = SampledGaussian(noise_multiplier=2, sample_rate=0.01, steps=10, delta=1e-5)


@pytest.mark.parametrize(
    ("accountant", "order"),
    [
        ("prv", ("prv", "pld", "rdp")),
        ("pld", ("pld", "prv", "rdp")),
        ("rdp", ("rdp", "prv", "pld")),
    ],
)
def test_the_chosen_accountant_leads_then_the_fixed_order(accountant, order):
    assert headline_order(accountant) == order


@pytest.mark.parametrize("accountant", ["gdp", "PRV", ""])
def test_others_may_not_lead(accountant):
    with pytest.raises(InputError, match="privacy.accountant must be one of prv, pld, rdp"):
        headline_order(accountant)


def test_every_accountant_answers_and_bounds_agree(accountants):
    accountants.prefetch("prv", MECHANISM)
    answers = {name: accountants.evaluate(name, MECHANISM) for name in ("rdp", "gdp", "pld", "prv")}
    assert answers["prv"].lower <= answers["pld"].upper <= answers["rdp"].upper
    assert answers["gdp"].upper is None


def test_an_answer_is_kept(accountants):
    first = accountants.evaluate("pld", MECHANISM)
    assert accountants.evaluate("pld", MECHANISM) is first
    assert accountants.evaluate("pld", MECHANISM, interval=1e-4) is not first


def test_over_the_limit_each_accountant_is_an_error_in_words():
    limits = Limits(seconds=0.05, grace=1)
    with Accountants(limits) as accountants:
        for name in ("prv", "rdp"):
            with pytest.raises(AccountantTimeout, match="timed out after 0.05 s of processor"):
                accountants.evaluate(name, MECHANISM)


def test_a_script_without_a_main_guard_may_call_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:0] = {sys.path!r}
            from dpft.privacy.accounting import Accountants, SampledGaussian
            mechanism = SampledGaussian(noise_multiplier=2, sample_rate=1, steps=1, delta=1e-5)
            with Accountants() as accountants:
                print(accountants.evaluate("rdp", mechanism).upper)
            heavy = {{"torch", "scipy", "dp_accounting", "prv_accountant"}}
            print(sorted(heavy & set(sys.modules)))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    value, loaded = done.stdout.splitlines()
    assert float(value) > 0
    assert loaded == "[]"


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
