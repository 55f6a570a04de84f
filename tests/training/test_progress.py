import logging
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from rich.console import Console

from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.reports.epsilon import headline_of
from dpft.training.listeners import LOG_LINES, PublicStep, StepProgress, draws_bars
from dpft.training.progress import ProgressRecord
from dpft.training.progress_record import ProgressLine
from tests.training.toy import spent


def progress(steps: int = 100, counted: str = "examples") -> StepProgress:
    return StepProgress(steps=steps, expected_batch_size=32, counted=counted)


def line(step: int, *, seconds: float = 10.0, epsilon: float | None = None) -> ProgressLine:
    return ProgressLine(step=step, since=step - 10, seconds=seconds, epsilon=epsilon)


def lines(
    caplog: pytest.LogCaptureFixture,
    folder: Path,
    *,
    steps: int,
    taken: int = 0,
    seconds: float = 1.0,
    spent: Callable[[int], SpentEpsilon] | None = None,
) -> list[str]:
    """Return what a session logs whose steps take ``seconds`` each."""
    caplog.set_level(logging.INFO)
    now = [0.0]
    with progress(steps) as shown:
        record = ProgressRecord(folder, [shown], clock=lambda: now[0])
        record.begin(taken)
        for step in range(taken + 1, steps + 1):
            now[0] += seconds
            epsilon = None if spent is None else spent(step)
            record.after_step(
                PublicStep(step=step, last_step=steps, learning_rate=0.1, epsilon=epsilon)
            )
    return caplog.messages


def test_the_last_epsilon_shown_is_rounded_up_as_the_end_states_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    progress().show(line(100, epsilon=2.99011), 100)
    end = headline_of(2.99011, delta=1e-5, accountant="prv", steps="100 steps", unit="example")
    assert "epsilon 2.9902," in caplog.messages[0] and end.startswith("epsilon = 2.9902 ")


def test_the_rate_names_what_it_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress(10, counted="units").show(line(10), 10)
    assert "32 units/s" in caplog.messages[0]


def test_trust_rule_7_the_bar_stands_from_the_start_and_moves_at_windows_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpft.training.listeners.draws_bars", lambda console: True)
    with progress(25) as shown:
        shown.begin(0)
        (task,) = shown._bar.tasks
        assert shown._bar.live.is_started
        assert (task.completed, task.fields["note"]) == (0, "first update at step 10")
        shown.show(line(10), 25)
        assert task.completed == 10
        assert task.fields["note"].startswith("10/25, ")
        assert task.fields["note"].endswith(", 0:14 to 0:16 to go"), task.fields["note"]


def test_lines_are_ten_steps_apart_and_have_the_average_rate_of_expected_sizes(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert lines(caplog, tmp_path, steps=25, seconds=2.0) == [
        "step 10 of 25, 16 examples/s, 0:20 taken, 0:30 to go",
        "step 25 of 25, 16 examples/s, 0:50 taken, 0:00 to go",
    ]


def test_trust_rule_7_fewer_than_ten_steps_show_neither_step_nor_rate(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (message,) = lines(caplog, tmp_path, steps=9, spent=spent)
    assert message.startswith("steps 1 to 9: no progress is shown")


def test_the_rate_of_a_run_that_goes_on_is_that_of_its_new_steps(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert lines(caplog, tmp_path, steps=80, taken=50, seconds=2.0) == [
        "step 60 of 80, 16 examples/s, 0:20 taken, 0:40 to go",
        "step 70 of 80, 16 examples/s, 0:40 taken, 0:20 to go",
        "step 80 of 80, 16 examples/s, 1:00 taken, 0:00 to go",
    ]


def test_trust_rule_7_a_run_that_goes_on_off_the_grid_has_no_rate_at_first(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert lines(caplog, tmp_path, steps=40, taken=15, seconds=2.0)[1:] == [
        "step 30 of 40",
        "step 40 of 40, 16 examples/s, 0:20 taken, 0:00 to go",
    ]


def test_a_long_time_is_shown_in_hours(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    assert lines(caplog, tmp_path, steps=20, seconds=3661.0)[0].endswith(
        "10:10:10 taken, 10:10:10 to go"
    )


def test_without_a_terminal_a_run_logs_a_few_lines(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    logged = lines(caplog, tmp_path, steps=1000, spent=spent)
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
