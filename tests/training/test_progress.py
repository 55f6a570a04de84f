import logging
from importlib.machinery import ModuleSpec

import pytest
from rich.console import Console

from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.reports.epsilon import headline_of
from dpft.training.listeners import LOG_LINES, StepProgress, draws_bars
from tests.training.toy import spent


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(
    steps: int = 100,
    *,
    epsilon=None,
    taken: int = 0,
    clock: Clock | None = None,
) -> StepProgress:
    return StepProgress(
        steps=steps,
        expected_batch_size=32,
        epsilon_after=epsilon,
        taken=taken,
        clock=clock or Clock(),
    )


def lines(caplog: pytest.LogCaptureFixture, *, seconds: float = 1.0, **values) -> list[str]:
    """Returns what a session logs whose steps take ``seconds`` each."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    with progress(clock=clock, **values) as shown:
        for step in range(values.get("taken", 0) + 1, values["steps"] + 1):
            clock.now += seconds
            shown.advance(step)
    return caplog.messages


def test_epsilon_so_far_is_rounded_up() -> None:
    shown = progress(epsilon=lambda step: SpentEpsilon(epsilon=2.99011, accountant="prv"))
    assert shown.note(20) == "epsilon 2.9902"


def test_the_last_epsilon_shown_is_the_one_that_the_end_states() -> None:
    shown = progress(epsilon=lambda step: SpentEpsilon(epsilon=7.9977, accountant="prv"))
    end = headline_of(7.9977, delta=1e-5, accountant="prv", steps="100 steps", unit="example")
    assert end.startswith(shown.note(100).replace("epsilon", "epsilon =") + " ")


def test_the_rate_names_what_it_counts(caplog) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    shown = StepProgress(
        steps=10, expected_batch_size=32, epsilon_after=None, counted="units", clock=clock
    )
    with shown:
        clock.now = 10.0
        shown.advance(10)
    assert "32 units/s" in caplog.messages[0]


def test_trust_rule_7_the_bar_stands_from_the_start_and_moves_at_windows_alone(monkeypatch) -> None:
    monkeypatch.setattr("dpft.training.listeners.draws_bars", lambda console: True)
    clock = Clock()
    with progress(steps=25, clock=clock) as shown:
        (task,) = shown._bar.tasks
        assert shown._bar.live.is_started
        waits = "steps show from step 10 of 25 on"
        assert (task.completed, task.fields["note"]) == (0, waits)
        for step in range(1, 10):
            clock.now += 1.0
            shown.advance(step)
            assert (task.completed, task.fields["note"]) == (0, waits)
        shown.advance(10)
        assert task.completed == 10
        assert task.fields["note"].startswith("10/25, ")


def test_lines_are_ten_steps_apart_and_have_the_average_rate_of_expected_sizes(caplog) -> None:
    assert lines(caplog, steps=25, seconds=2.0) == [
        "step 10 of 25, 16 examples/s, 0:20 taken, 0:30 to go",
        "step 25 of 25, 16 examples/s, 0:50 taken, 0:00 to go",
    ]


def test_trust_rule_7_fewer_than_ten_steps_show_neither_step_nor_rate(caplog) -> None:
    (line,) = lines(caplog, steps=9, epsilon=spent)
    assert line.startswith("steps 1 to 9 show no progress")


def test_the_rate_of_a_run_that_goes_on_is_that_of_its_new_steps(caplog) -> None:
    assert lines(caplog, steps=80, taken=50, seconds=2.0) == [
        "step 60 of 80, 16 examples/s, 0:20 taken, 0:40 to go",
        "step 70 of 80, 16 examples/s, 0:40 taken, 0:20 to go",
        "step 80 of 80, 16 examples/s, 1:00 taken, 0:00 to go",
    ]


def test_trust_rule_7_a_run_that_goes_on_off_the_grid_has_no_rate_at_first(caplog) -> None:
    assert lines(caplog, steps=40, taken=15, seconds=2.0)[1:] == [
        "step 30 of 40",
        "step 40 of 40, 16 examples/s, 0:20 taken, 0:00 to go",
    ]


def test_a_long_time_is_shown_in_hours(caplog) -> None:
    assert lines(caplog, steps=20, seconds=3661.0)[0].endswith("10:10:10 taken, 10:10:10 to go")


def test_without_a_terminal_a_run_logs_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    logged = lines(caplog, steps=1000, epsilon=spent)
    assert len(logged) == LOG_LINES
    assert logged[-1].startswith("step 1000 of 1000, epsilon 1000.0000,")


@pytest.mark.parametrize(
    ("terminal", "notebook", "widgets", "drawn"),
    [
        (True, False, False, True),
        (False, True, True, True),
        (False, True, False, False),
        (False, False, True, False),
    ],
)
def test_bars_are_drawn_on_a_terminal_and_in_a_notebook_with_widgets(
    terminal: bool, notebook: bool, widgets: bool, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ModuleSpec("ipywidgets", None) if widgets else None
    monkeypatch.setattr("dpft.training.listeners.find_spec", lambda name: found)
    assert draws_bars(Console(force_terminal=terminal, force_jupyter=notebook)) is drawn
