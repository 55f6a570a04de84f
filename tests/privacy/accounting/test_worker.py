import json
import subprocess
import sys

import pytest

QUESTION = {
    "accountant": "rdp",
    "mechanism": {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 10, "delta": 1e-5},
    "options": {},
}


def ask(*questions, library="json", seconds=20, memory=2**31):
    command = [sys.executable, "-m", "dpft.privacy.accounting.worker"]
    return subprocess.run(
        [*command, library, str(seconds), str(memory)],
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
def test_the_time_limit_ends_the_process_itself(library):
    # SIGALRM's default action, which no Python handler or C loop can hold up.
    assert ask(QUESTION, library=library, seconds=0.02).returncode == -14


def test_the_memory_limit_is_an_error_in_words():
    huge = {**QUESTION, "accountant": "pld", "options": {"interval": 1e-8}}
    huge["mechanism"] = {**QUESTION["mechanism"], "noise_multiplier": 0.3, "sample_rate": 0.5}
    answer = json.loads(ask(huge, memory=2**30).stdout)
    assert answer["error"] == "It needs more than 1 GiB of memory."
