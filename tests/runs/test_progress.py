"""The bar counts batches on a terminal, and is absent elsewhere."""

import io

import pytest
from rich.console import Console

from dpft.runs import progress
from dpft.runs.progress import batch_progress


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=80)
    monkeypatch.setattr(progress, "Console", lambda *, stderr: console)
    with batch_progress() as show:
        show("predictions", 32, 100)
        show("predictions", 100, 100)
        show("likelihoods", 7, 640)
    return screen.getvalue()


def test_a_terminal_sees_a_bar_for_each_kind_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown(monkeypatch, terminal=True)
    for part in ("predictions", "100/100", "likelihoods", "7/640"):
        assert part in screen


def test_where_there_is_no_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=False) == ""


def test_the_bar_is_drawn_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        progress, "Console", lambda *, stderr: asked.append(stderr) or Console(file=io.StringIO())
    )
    with batch_progress():
        assert asked == [True]
