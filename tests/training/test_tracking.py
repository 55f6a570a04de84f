import json
import logging
from dataclasses import replace

import pytest

from dpft.errors import StateError
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.ledger import read_ledger
from dpft.privacy.replay_log import JournaledLedger
from dpft.records.configuration import TrackerState
from dpft.runs.tracking import Tracking, open_tracking
from dpft.training.checkpoint import find_resume_point
from dpft.training.listeners import PublicStep
from dpft.training.ordinary import train_ordinarily
from dpft.training.private_run import train_privately
from dpft.training.trackers import TensorBoard, TrackerConfig
from tests.training.killed_runs import killed
from tests.training.toy import plan, privacy, session, spent
from tests.training.trackers.reading import read_events

POINT = {"train/learning_rate", "train/steps_per_second", "privacy/epsilon"}
SPENT = spent(1)


class Kept:
    """A tracker that keeps what it is told, and may fail from a call on."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.points, self.results, self.closed = [], [], []
        self._left = fails_after

    def write(self, step, values, seconds):
        self._count()
        self.points.append((step, values, seconds))

    def conclude(self, step, values, seconds):
        self._count()
        self.results.append((step, values, seconds))

    def close(self, *, failed):
        self.closed.append(failed)

    def _count(self):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise ConnectionError("the network\nis down")


class Choice(TrackerConfig):
    """``tracking=kept``."""

    def check(self):
        """Nothing is missing."""

    def open(self, place):
        opened.append(place)
        return tracker


tracker, opened = Kept(), []


def tracking(tmp_path, kept, *, written=None, every=10, seconds=1.0) -> Tracking:
    """A tracking whose clock moves on by ``seconds`` at each look."""
    ticks = iter(range(10**6))
    return Tracking(
        kept,
        name="kept",
        path=tmp_path / "kept.json",
        written=written or TrackerState(run_id="abc"),
        every=every,
        clock=lambda: next(ticks) * seconds,
    )


def take(listener, first: int, last: int, *, epsilon: SpentEpsilon | None = SPENT) -> None:
    listener.begin(first - 1)
    for step in range(first, last + 1):
        listener.after_step(
            PublicStep(step=step, last_step=last, learning_rate=0.1, epsilon=epsilon)
        )


def test_trust_rule_7_points_are_ten_steps_apart_the_last_step_among_them(tmp_path) -> None:
    kept = Kept()
    take(tracking(tmp_path, kept), 1, 37)
    assert [step for step, _, _ in kept.points] == [10, 20, 37]
    assert all(set(values) == POINT for _, values, _ in kept.points)


def test_rates_are_averages_of_the_steps_since_the_last_point(tmp_path) -> None:
    kept = Kept()
    take(tracking(tmp_path, kept, seconds=5.0), 1, 34)
    # the clock is looked at when steps begin and once a point: 5 s for 10 steps, at last for 14
    assert [values["train/steps_per_second"] for _, values, _ in kept.points] == [2.0, 2.0, 2.8]


def test_trust_rule_7_points_of_any_distance_lie_at_boundaries_that_the_bar_shares(
    tmp_path,
) -> None:
    kept = Kept()
    take(tracking(tmp_path, kept, every=15), 1, 70)
    assert [step for step, _, _ in kept.points] == [20, 40, 70]


def test_trust_rule_7_a_session_that_begins_off_the_grid_has_no_rate_at_its_first_point(
    tmp_path,
) -> None:
    kept = Kept()
    take(tracking(tmp_path, kept), 16, 50)
    assert [(step, "train/steps_per_second" in values) for step, values, _ in kept.points] == [
        (30, False), (40, True), (50, True),
    ]  # fmt: skip


def test_trust_rule_7_fewer_than_ten_steps_show_no_time_of_their_own(tmp_path) -> None:
    kept = Kept()
    listener = tracking(tmp_path, kept)
    take(listener, 1, 9)
    listener.conclude(9, {"privacy/epsilon_reported": 3.0})
    assert kept.points == []
    assert kept.results == [(9, {"privacy/epsilon_reported": 3.0}, 1.0)], "when steps began"


def test_replayed_steps_and_results_are_not_written_twice(tmp_path) -> None:
    kept = Kept()
    take(tracking(tmp_path, kept), 1, 40)
    again = TrackerState(run_id="abc", last_step=30, concluded=True)
    resumed = tracking(tmp_path, kept, written=again)
    take(resumed, 16, 40)
    resumed.conclude(40, {"privacy/epsilon_reported": 3.0})
    assert [step for step, _, _ in kept.points] == [10, 20, 30, 40, 40]
    assert kept.results == []
    assert json.loads((tmp_path / "kept.json").read_text())["last_step"] == 40


def test_a_step_is_noted_before_it_is_written_so_that_a_kill_doubles_none(tmp_path) -> None:
    kept = Kept(fails_after=0)
    take(tracking(tmp_path, kept), 1, 10)
    assert json.loads((tmp_path / "kept.json").read_text())["last_step"] == 10


def test_a_tracker_that_fails_is_warned_of_once_and_loses_no_step(tmp_path, caplog) -> None:
    kept = Kept(fails_after=1)
    caplog.set_level(logging.WARNING)
    listener = tracking(tmp_path, kept)
    take(listener, 1, 40)
    listener.conclude(40, {"privacy/epsilon_reported": 3.0})
    listener.close(failed=False)
    assert [step for step, _, _ in kept.points] == [10]
    assert caplog.messages == [
        "tracking=kept failed, and the run goes on without it: ConnectionError: the network is down"
    ]


def test_an_epsilon_that_is_not_known_is_left_out(tmp_path) -> None:
    kept = Kept()
    take(tracking(tmp_path, kept), 1, 10, epsilon=None)
    take(tracking(tmp_path, kept), 1, 10, epsilon=replace(SPENT, epsilon=float("inf")))
    assert [set(values) for _, values, _ in kept.points] == [POINT - {"privacy/epsilon"}] * 2


def test_a_run_keeps_its_id_over_sessions_and_says_how_each_ended(tmp_path) -> None:
    config = Choice(name="kept")
    opened.clear()
    with pytest.raises(KeyboardInterrupt), open_tracking(config, tmp_path, public={}):
        raise KeyboardInterrupt
    with open_tracking(config, tmp_path, public={}) as listener:
        take(listener, 1, 10)
    assert tracker.closed == [True, False]
    assert [place.goes_on for place in opened] == [False, True]
    assert opened[0].run_id == opened[1].run_id and len(opened[0].run_id) == 8
    assert opened[0].folder == tmp_path / "tracking" / "kept"


def test_a_damaged_note_is_refused_with_the_way_out(tmp_path) -> None:
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "kept.json").write_text("{}")
    with (
        pytest.raises(StateError, match="kept.json is damaged.*tracking=none"),
        open_tracking(Choice(name="kept"), tmp_path, public={}),
    ):
        pass


def test_trust_rule_7_the_event_files_of_a_run_hold_public_quantities_alone(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    own = session(tmp_path)
    with open_tracking(TensorBoard(), tmp_path, public={"train": {"steps": 20}}) as listener:
        object.__setattr__(own, "listeners", (listener,))
        train_privately(own, plan(steps=20), privacy(), epsilon_after=spent)
        listener.conclude(20, {"privacy/epsilon_reported": 2.0})
    events = read_events(tmp_path / "tracking" / "tensorboard")
    assert events.keys() == POINT | {"privacy/epsilon_reported", "config/text_summary"}
    assert {tuple(step for step, _, _ in events[tag]) for tag in POINT} == {(10, 20)}


@pytest.mark.slow
def test_a_private_run_tells_its_learning_rate_and_the_epsilon_of_the_ledger(tmp_path) -> None:
    kept = Kept()
    own = session(tmp_path)
    object.__setattr__(own, "listeners", (tracking(tmp_path, kept),))
    train_privately(own, plan(steps=20), privacy(), epsilon_after=spent)
    assert read_ledger(tmp_path / "ledger.jsonl").steps == 20
    # linear from 0.01 to 0 over 20 steps: step 10 is taken with 11/20 of it, step 20 with 1/20
    told = [(step, values["train/learning_rate"]) for step, values, _ in kept.points]
    assert told == [(10, pytest.approx(0.0055)), (20, pytest.approx(0.0005))]
    assert [values["privacy/epsilon"] for _, values, _ in kept.points] == [10.0, 20.0]
    assert all(set(values) == POINT for _, values, _ in kept.points)


def test_steps_that_are_taken_again_count_in_the_epsilon_that_is_told(tmp_path) -> None:
    kept = Kept()
    own = session(tmp_path, checkpoint_every=5)
    with killed(JournaledLedger, "record_step", 9):
        train_privately(own, plan(steps=20), privacy(None), epsilon_after=spent)
    own = session(tmp_path, micro_batch_size=2)
    object.__setattr__(own, "listeners", (tracking(tmp_path, kept),))
    overspends = privacy(None)
    object.__setattr__(overspends, "resume_overspend", True)
    resume_point = find_resume_point(tmp_path)
    train_privately(own, plan(steps=20), overspends, epsilon_after=spent, resume_point=resume_point)
    # 8 steps were in the ledger and the checkpoint had 5, so 3 were taken again
    assert [(step, values["privacy/epsilon"]) for step, values, _ in kept.points] == [(20, 23.0)]


def test_a_run_without_privacy_tells_the_same_but_no_epsilon(tmp_path) -> None:
    kept = Kept()
    own = session(tmp_path)
    object.__setattr__(own, "listeners", (tracking(tmp_path, kept),))
    train_ordinarily(own, 10)
    assert [set(values) for _, values, _ in kept.points] == [POINT - {"privacy/epsilon"}]
