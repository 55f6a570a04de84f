"""Sentences and tables on a terminal and in a pipe."""

import re
import sys

import pytest

from dpft.reports.terminal import Grid, show

ANSI = re.compile(r"\x1b\[[\d;]*m")
SENTENCE = "**A sentence** that is longer than a narrow terminal, of `run=RUN`, has [brackets]."
GRID = Grid(title="Scores", columns=["metric", "before", "after"], rows=[("bleu ↑", "1", "60.43")])


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")


def test_a_pipe_gets_a_line_for_each_sentence_and_each_row_without_color(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([SENTENCE, GRID])
    assert capsys.readouterr().out.splitlines() == [
        SENTENCE.replace("*", "").replace("`", ""),
        "",
        "Scores",
        "  metric  before  after",
        "  bleu ↑       1  60.43",
    ]


def test_a_terminal_wraps_to_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show([SENTENCE, Grid(rows=[("a quantity", "word " * 20), ("another", "1")])])
    lines = [ANSI.sub("", line) for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 40 and len(lines) > 5
    words = SENTENCE.replace("*", "").replace("`", "").split()
    assert " ".join(lines).split()[: len(words)] == words
