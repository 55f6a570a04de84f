"""A bar counts batches on a terminal; elsewhere a few lines tell how much is done."""

import io
import itertools
import logging

import pytest
from rich.console import Console

from dpft.runs import tracking
from dpft.runs.tracking import batch_progress


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, counts: bool = True) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=80)
    monkeypatch.setattr(tracking, "Console", lambda *, stderr: console)
    with batch_progress(counts=counts) as show:
        show("predictions", 32, 100)
        show("predictions", 100, 100)
        show("likelihoods", 7, 640)
    return screen.getvalue()


def test_a_terminal_sees_a_bar_for_each_kind_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown(monkeypatch, terminal=True)
    for part in ("predictions", "100/100", "likelihoods", "7/640"):
        assert part in screen


def test_trust_rule_8_the_bar_of_a_private_split_tells_tenths_and_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = shown(monkeypatch, terminal=True, counts=False)
    assert "100%" in screen and "  0%" in screen and "likelihoods" in screen
    for number in ("32", "/100", "640", "/10", " 1%"):
        assert number not in screen


def test_where_there_is_no_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=False) == ""


def test_a_work_whose_size_is_public_says_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    monkeypatch.setattr(tracking.time, "monotonic", lambda: now[0])
    with batch_progress("audit", timed=True) as show:
        for at, done in ((2, 1), (6, 4), (8, 6), (20, 20), (100, 100)):
            now[0] = float(at)
            show("suffixes", done, 100)
    assert caplog.messages[:2] == [
        "audit: 96 suffixes to score, about 2:24 to go",
        "audit: 20 % of suffixes, about 1:20 to go",
    ]
    assert caplog.messages[-1] == "audit: 100 % of suffixes"


def test_a_work_on_private_records_says_no_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with batch_progress("memorization", counts=False) as show:
        show("records", 10, 10)
    assert caplog.messages and not any("to go" in line for line in caplog.messages)


@pytest.mark.parametrize("total", [1, 7, 10, 640])
def test_trust_rule_8_a_pipe_gets_the_same_lines_for_any_number_of_private_records(
    caplog: pytest.LogCaptureFixture, total: int
) -> None:
    caplog.set_level(logging.INFO)
    with batch_progress("evaluating", counts=False) as show:
        for _ in ("matched", "mismatched"):  # each part of a split is a work of its own
            for done in range(1, total, 3):
                show("predictions", done, total)
            show("predictions", total, total)
            show("likelihoods", total, total)
    ends = ["evaluating: 100 % of predictions", "evaluating: 100 % of likelihoods"]
    assert caplog.messages == ends


@pytest.mark.parametrize(("seconds", "lines"), [(0.01, 1), (0.3, 10), (9.0, 10)])
def test_a_pipe_gets_ten_lines_at_most_of_a_scoring_and_one_a_second(
    caplog: pytest.LogCaptureFixture, seconds: float, lines: int
) -> None:
    caplog.set_level(logging.INFO)
    now, told = 0.0, []
    show = tracking._logged("", tracking.FIFTHS, clock=lambda: now)
    for what in "abcd":
        for done in range(1, 11):
            now += seconds
            show(what, done, 10)
            told += [now] * (len(caplog.messages) - len(told))
    assert len(told) == lines and caplog.messages[0] == "20 % of a"
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(told))


def test_the_bar_is_drawn_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        tracking, "Console", lambda *, stderr: asked.append(stderr) or Console(file=io.StringIO())
    )
    with batch_progress():
        assert asked == [True]
