"""Bars and lines of work on records, and what they do not tell of private ones."""

import io
import itertools
import logging

import pytest
from rich.console import Console

from dpft.commands import progress_bars
from dpft.commands.progress_bars import batch_progress


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, counts: bool = True) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=80)
    monkeypatch.setattr(progress_bars, "Console", lambda *, stderr: console)
    with batch_progress(counts=counts) as show:
        show("predictions", 32, 100)
        show("predictions", 100, 100)
        show("likelihoods", 7, 640)
    return screen.getvalue()


def test_a_terminal_sees_a_bar_for_each_kind_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown(monkeypatch, terminal=True)
    for part in ("predictions", "100/100", "likelihoods", "640/640"):
        assert part in screen


def test_trust_rule_8_the_bar_of_a_private_split_tells_tenths_and_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = shown(monkeypatch, terminal=True, counts=False)
    assert "100%" in screen and "likelihoods" in screen
    for number in ("32", "/100", "640", "/10", " 1%"):
        assert number not in screen


def test_where_there_is_no_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=False) == ""


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


@pytest.mark.parametrize(("seconds", "lines"), [(0.01, 1), (0.3, 10), (9.0, 20)])
def test_a_pipe_gets_a_line_for_each_fifth_and_one_a_second(
    caplog: pytest.LogCaptureFixture, seconds: float, lines: int
) -> None:
    caplog.set_level(logging.INFO)
    now, told = 10.0, []
    show = progress_bars._logged("", progress_bars.FIFTHS, clock=lambda: now)
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
        progress_bars,
        "Console",
        lambda *, stderr: asked.append(stderr) or Console(file=io.StringIO()),
    )
    with batch_progress():
        assert asked == [True]
