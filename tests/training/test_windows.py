"""Seen from outside (trust rule 7): what a run shows, and when, tells of no few steps."""

import logging
import random
from collections import Counter

import pytest

from dpft.commands.tracking import Tracking
from dpft.run_folder import PRIVATE_PROGRESS, PROGRESS
from dpft.training import listeners as progress_module
from dpft.training.listeners import PublicStep, StepProgress, StepWindows
from dpft.training.progress import ProgressRecord
from tests.slowness import slow_but
from tests.training.toy import spent

SLOWER = 10**7
"""Seconds that a slowed step takes longer, of at most a hundred."""


def shown(start: int, last_step: int, every: int = 10) -> list[int]:
    windows = StepWindows(start, last_step, every)
    return [step for step in range(start + 1, last_step + 1) if windows.shows(step)]


def test_a_last_window_below_ten_joins_the_one_before() -> None:
    assert shown(0, 37) == [10, 20, 37]
    assert shown(0, 40) == [10, 20, 30, 40]
    assert shown(0, 19) == [19]


def test_fewer_than_ten_steps_show_nothing() -> None:
    assert shown(0, 9) == shown(95, 100) == shown(31, 37) == []
    assert StepWindows(0, 9).first_shown_step is StepWindows(95, 100).first_shown_step is None


def test_a_session_shows_boundaries_of_the_runs_grid_ten_steps_from_its_start() -> None:
    assert shown(15, 50) == [30, 40, 50]
    assert shown(30, 50) == [40, 50]
    assert shown(85, 100) == [100]
    assert [StepWindows(start, 50).starts_on_grid for start in (0, 15, 30, 45)] == [1, 0, 1, 0]


@pytest.mark.parametrize("start", [0, 3, 10, 15, 88, 91, 100, 117])
@pytest.mark.parametrize("every", [1, 10, 13, 35, 200])
def test_boundaries_are_whole_tens_of_steps_apart_and_the_first_is_known(start, every) -> None:
    found = shown(start, 127, every)
    assert set(found) <= set(shown(start, 127))
    assert StepWindows(start, 127, every).first_shown_step == (found[0] if found else None)
    apart = [later - step for step, later in zip([start, *found], found, strict=False)]
    assert all(steps >= max(10, every) for steps in apart)


class Observer:
    """What somebody sees who reads every public output, and when it appears."""

    def __init__(self) -> None:
        self.now = 0
        self.began: int | None = None
        self.seen = []

    def clock(self) -> int:
        return self.now

    def session(self, setup: int) -> None:
        """Begins anew: how long it took to get there is not known."""
        self.now, self.began = self.now + setup, None

    def see(self, *what, at: float | None = None) -> None:
        if self.began is None:
            self.began = self.now
        time = None if at is None else at - self.began
        self.seen.append((self.now - self.began, time, *what))


def observed(observer: Observer, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    """Put the observer in place of the screen and of the log."""

    class Bar:
        def __init__(self, *columns, console, disable, refresh_per_second=10) -> None:
            self.shows, self.started = not disable, False

        def add_task(self, *args, **values) -> int:
            return 0

        def start(self) -> None:
            self.started = self.shows
            if self.shows:
                observer.see("bar")

        def update(self, task, **values) -> None:
            if self.started:
                observer.see("bar", *values.items())

        def stop(self) -> None:
            pass

    class Screen:
        is_terminal = terminal
        is_jupyter = False

    class Log:
        def info(self, text, *values) -> None:
            if not text.startswith("steps %d to %d: "):  # before the first step
                observer.see(text % values)

    monkeypatch.setattr(progress_module, "Progress", Bar)
    monkeypatch.setattr(progress_module, "Console", lambda **_: Screen())
    monkeypatch.setattr(progress_module, "logger", Log())


class Watched:
    """A tracker that the observer reads."""

    def __init__(self, observer: Observer) -> None:
        self._see = observer.see

    def write(self, step, values) -> None:
        self._see("point", step, *values.items())

    conclude = write


def transcript(durations, sessions, monkeypatch, tmp_path, *, terminal: bool, every: int) -> str:
    """Return everything that is seen of a run in ``sessions``, each from a step to a step.

    The last one takes the last step, and what it shows of its end is seen, too.
    """
    observer, last_step = Observer(), len(durations)
    path = tmp_path / PROGRESS
    for left in (path, tmp_path / PRIVATE_PROGRESS):
        left.unlink(missing_ok=True)
    content = ""
    observed(observer, monkeypatch, terminal=terminal)
    for start, end in sessions:
        observer.session(setup=30)
        tracking = Tracking(Watched(observer), name="watched", every=every)
        bar = StepProgress(steps=last_step, expected_batch_size=10**15)
        record = ProgressRecord(tmp_path, [bar, tracking], clock=observer.clock)
        with bar:
            record.begin(start)
            for step in range(start + 1, end + 1):
                observer.now += durations[step - 1]
                record.after_step(
                    PublicStep(step=step, last_step=last_step, learning_rate=0.1, epsilon=spent(1))
                )
                if path.exists() and path.read_text() != content:
                    content = path.read_text()
                    observer.see("file", content)
        if observer.began is not None and end == last_step:
            tracking.conclude(last_step, {"privacy/epsilon_reported": 1.0})
            observer.see("report")
    return repr(observer.seen)


def some_sessions(random_: random.Random, last_step: int) -> list[tuple[int, int]]:
    """Return a run that breaks off up to three times, each time after a checkpoint of its own."""
    sessions, start = [], 0
    for _ in range(random_.randint(0, 3)):
        end = random_.randint(start, last_step)
        sessions.append((start, end))
        start = random_.randint(start, end)
    return [*sessions, (start, last_step)]


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("seed", slow_but([1, 6], range(20)))
def test_trust_rule_7_no_public_output_tells_the_time_of_fewer_than_ten_steps(
    monkeypatch, tmp_path, seed: int, terminal: bool
) -> None:
    """Whichever of at least ten steps is slower, all that is seen, and when, is the same.

    So nothing that can be computed of it, no difference of two things either, is the time of fewer.
    A batch is as large when its step is taken again, so a slow step is slow in every session.
    """
    random_ = random.Random(seed)
    last_step, every = random_.randint(1, 130), random_.choice([10, 13, 20, 35])
    durations = [random_.randint(1, 100) for _ in range(last_step)]
    sessions = some_sessions(random_, last_step)
    seen = Counter()
    for slow in range(last_step):
        slowed = [time + SLOWER * (step == slow) for step, time in enumerate(durations)]
        seen[
            transcript(slowed, sessions, monkeypatch, tmp_path, terminal=terminal, every=every)
        ] += 1
    plain = transcript(durations, sessions, monkeypatch, tmp_path, terminal=terminal, every=every)
    told = {what: steps for what, steps in seen.items() if what != plain}
    assert all(steps >= 10 for steps in told.values()), (sessions, last_step, sorted(told.values()))
    if len(sessions) == 1 and last_step >= 10:
        assert sum(told.values()) == last_step, "a run that never broke off shows all its time"


def test_a_short_session_says_that_it_shows_no_progress_or_from_when_on(caplog) -> None:
    caplog.set_level(logging.INFO)
    for taken, steps in ((0, 9), (15, 100), (0, 100)):
        StepProgress(steps=steps, expected_batch_size=1).begin(taken)
    why = "(durations of fewer than ten steps are private)"
    assert caplog.messages == [
        f"steps 1 to 9: no progress is shown {why}",
        f"steps 16 to 100: first update at step 30 {why}",
    ]
