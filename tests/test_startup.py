"""The line of a run until its steps show: on a terminal from the first second, and nowhere else."""

import io
import logging
from types import SimpleNamespace

import pytest

from dpft import startup
from dpft.startup import (
    ERASE,
    LOADING,
    READING,
    TRAINING,
    end_startup,
    show_startup_stage,
    shown_startup,
)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(startup, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(startup, "EVERY", 3600.0)
    return stream


def test_the_first_part_shows_at_once_and_the_line_is_gone_at_the_end(terminal: Terminal) -> None:
    with shown_startup():
        show_startup_stage(READING)
        assert terminal.getvalue() == f"{ERASE}{'─' * 24} reading the records 0:00"
    assert terminal.getvalue().endswith(ERASE)
    show_startup_stage(LOADING)
    assert "loading the model" not in terminal.getvalue(), "no run is shown any more"


def test_the_line_is_redrawn_as_time_goes_by(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "EVERY", 0.01)
    with shown_startup():
        show_startup_stage(READING)
        show_startup_stage(LOADING)
        line = startup._line.get()
        assert line is not None
        for _ in range(500):
            if "loading the model" in terminal.getvalue():
                break
            line._ended.wait(0.01)
        assert "loading the model" in terminal.getvalue()


def test_a_log_line_stands_on_a_line_of_its_own(terminal: Terminal) -> None:
    handler = logging.StreamHandler(terminal)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with shown_startup():
            show_startup_stage(READING)
            root.warning("said")
        assert f"reading the records 0:00{ERASE}said\n" in terminal.getvalue()
        assert not handler.filters
    finally:
        root.removeHandler(handler)


def test_another_bar_has_the_terminal_to_itself(terminal: Terminal) -> None:
    with shown_startup():
        show_startup_stage(READING)
        end_startup()
        assert terminal.getvalue().endswith(ERASE)
        show_startup_stage(TRAINING)
        assert "training 0:00" in terminal.getvalue()


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_pipe_or_a_dumb_terminal_gets_nothing(
    term: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    stream = terminal if term == "dumb" else io.StringIO()
    monkeypatch.setattr(startup, "sys", SimpleNamespace(stderr=stream))
    with shown_startup():
        show_startup_stage(READING)
    assert stream.getvalue() == ""
