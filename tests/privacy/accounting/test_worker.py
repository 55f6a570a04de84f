import json
import signal
import subprocess
import sys

import pytest

QUESTION = {
    "accountant": "rdp",
    "mechanism": {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 10, "delta": 1e-5},
    "options": {},
}


def ask(*questions, library="json", seconds=20, wall_seconds=300, memory=2**31):
    command = [sys.executable, "-m", "dpft.privacy.accounting.worker"]
    return subprocess.run(
        [*command, library, str(seconds), str(wall_seconds), str(memory), "0"],
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
    )


def test_answers_line_by_line_and_reports_errors_in_words():
    bad = {**QUESTION, "mechanism": {**QUESTION["mechanism"], "delta": 2}}
    lines = ask(QUESTION, bad, QUESTION).stdout.splitlines()
    first, second, third = map(json.loads, lines)
    assert first == third
    assert first["lower"] is None
    assert 0 < first["upper"] < 2
    assert second["error"].startswith("delta must be in (0, 1), got 2")


@pytest.mark.parametrize("library", ["json", "dp_accounting"])
def test_the_limit_of_processor_time_ends_the_process_itself(library):
    # The signal's default action, which no Python handler or C loop can hold up.
    assert ask(QUESTION, library=library, seconds=0.02).returncode == -signal.SIGPROF


def test_so_does_the_limit_of_wall_time():
    assert ask(QUESTION, wall_seconds=0.02).returncode == -signal.SIGALRM


def test_it_stands_back_behind_other_processes_if_it_is_told_to():
    program = """
import os
from dpft.privacy.accounting import worker
from dpft.privacy.accounting.mechanism import Epsilon

before = os.nice(0)
worker.ACCOUNTANTS = {"rdp": lambda _: Epsilon(upper=os.nice(0) - before)}
worker.main("json", 5, 60, 2**31, 3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(QUESTION) + "\n",
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["upper"] == 3.0


def test_waiting_takes_none_of_the_processor_time():
    program = """
import time
from dpft.privacy.accounting import worker
from dpft.privacy.accounting.mechanism import Epsilon

def patient(mechanism):
    time.sleep(0.4)
    return Epsilon(upper=1.0)

worker.ACCOUNTANTS = {"rdp": patient}
worker.main("json", 0.2, 60, 2**31)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(QUESTION) + "\n",
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["upper"] == 1


def test_the_memory_limit_is_an_error_in_words():
    huge = {**QUESTION, "accountant": "pld", "options": {"interval": 1e-8}}
    huge["mechanism"] = {**QUESTION["mechanism"], "noise_multiplier": 0.3, "sample_rate": 0.5}
    answer = json.loads(ask(huge, memory=2**30).stdout)
    assert answer["error"] == "It needs more than 1 GiB of memory."
