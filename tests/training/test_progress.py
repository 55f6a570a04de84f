import logging

import pytest

from dpft.training.progress import LOG_LINES, StepProgress


def progress(
    steps: int = 100, *, epsilon=None, seconds: float = 0.0, taken: int = 0
) -> StepProgress:
    times = iter([0.0, 0.0])
    return StepProgress(
        steps=steps,
        expected_batch_size=32,
        epsilon_after=epsilon,
        taken=taken,
        clock=lambda: next(times, seconds),
    )


def test_epsilon_so_far_is_rounded_up() -> None:
    assert progress(epsilon=lambda step: 2.9901).note(1) == "epsilon at most 3.00"


def test_no_rate_is_shown_before_ten_steps() -> None:
    with progress(seconds=20.0) as shown:
        assert shown.note(9) == ""
        assert shown.note(10) == "16 examples/s, 3:00 to go"


def test_the_rate_is_of_expected_sizes_and_the_average_of_all_steps() -> None:
    with progress(seconds=50.0) as shown:
        assert shown.note(50) == "32 examples/s, 0:50 to go"


def test_the_rate_of_a_run_that_goes_on_is_that_of_its_new_steps() -> None:
    with progress(seconds=20.0, taken=50) as shown:
        assert shown.note(59) == ""
        assert shown.note(60) == "16 examples/s, 1:20 to go"


def test_a_long_time_is_shown_in_hours() -> None:
    with progress(steps=20, seconds=36610.0) as shown:
        assert shown.note(10).endswith("10:10:10 to go")


def test_without_a_terminal_a_run_logs_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with progress(steps=1000, epsilon=lambda step: 1.0) as shown:
        for step in range(1, 1001):
            shown.advance(step)
    assert len(caplog.messages) == LOG_LINES
    assert caplog.messages[-1].startswith("step 1000 of 1000, epsilon at most 1.00")
