"""progress.jsonl: which lines it has, when they appear, and what a resumed run does to them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from docs.tools.reference.forms import schema
from dpft.commands.tracking import Tracking
from dpft.errors import StateError
from dpft.evaluation.scores import SplitScores
from dpft.privacy.journal import JournaledLedger
from dpft.privacy.ledger import read_ledger
from dpft.run_folder import PRIVATE_PROGRESS, PROGRESS
from dpft.training.checkpoint import find_resume_point
from dpft.training.listeners import PublicStep
from dpft.training.progress import ProgressRecord, remove_scores
from dpft.training.progress_record import ProgressLine, read_progress
from dpft.training.trackers import TensorBoard
from tests.training.killed_runs import killed
from tests.training.toy import plan, privacy, session, spent, train_ordinarily, train_privately
from tests.training.trackers.reading import read_events

SPENT = spent(1)
POINT = {"train/learning_rate", "train/steps_per_second", "privacy/epsilon"}
KEYS = {"schema_version", "step", "since", "seconds", "learning_rate", "epsilon"}


class Told:
    """Keeps the steps that it is told for the first time."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.began: list[int] = []

    def begin(self, step: int) -> None:
        self.began.append(step)

    def show(self, line: ProgressLine, last_step: int, *, again: bool) -> None:
        if not again:
            self.steps.append(line.step)


def record(folder: Path, *readers: Any, seconds: float = 1.0) -> ProgressRecord:
    """A record whose clock moves on by ``seconds`` at each look."""
    ticks = iter(range(10**6))
    return ProgressRecord(folder, readers, clock=lambda: next(ticks) * seconds)


def take(progress: ProgressRecord, start: int, end: int, last: int, **changes: Any) -> None:
    """Take the steps from ``start`` to ``end`` of a run that ends at ``last``."""
    progress.begin(start)
    for step in range(start + 1, end + 1):
        given = {"learning_rate": 0.1, "epsilon": SPENT, **changes}
        progress.after_step(PublicStep(step=step, last_step=last, **given))


def scores(bleu: float) -> tuple[SplitScores, ...]:
    return (SplitScores(task="e2e", split="test", examples=2, metrics={"bleu": bleu}),)


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / PROGRESS).read_text().splitlines()]
    for line in found:
        Draft202012Validator(schema("progress_line")).validate(line)
    return found


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in lines(folder)] if (folder / PROGRESS).exists() else []


def test_trust_rule_7_lines_are_ten_steps_apart_and_have_public_keys_only(tmp_path: Path) -> None:
    take(record(tmp_path), 0, 37, 37)
    assert steps(tmp_path) == [10, 20, 37]
    assert all(line.keys() == KEYS for line in lines(tmp_path))


def test_durations_are_of_the_steps_since_the_last_line(tmp_path: Path) -> None:
    take(record(tmp_path, seconds=5.0), 0, 34, 34)
    assert [(line["since"], line["seconds"]) for line in lines(tmp_path)] == [
        (0, 5.0), (10, 5.0), (20, 5.0),
    ]  # fmt: skip


def test_trust_rule_7_a_session_that_begins_off_the_grid_has_no_duration_at_first(
    tmp_path: Path,
) -> None:
    take(record(tmp_path), 15, 50, 50)
    assert [(line["step"], "seconds" in line) for line in lines(tmp_path)] == [
        (30, False), (40, True), (50, True),
    ]  # fmt: skip


def test_trust_rule_7_fewer_than_ten_steps_leave_no_line(tmp_path: Path) -> None:
    progress = record(tmp_path)
    take(progress, 0, 9, 9)
    progress.publish(9)
    assert not (tmp_path / PROGRESS).exists()


def test_an_epsilon_that_is_not_known_is_left_out(tmp_path: Path) -> None:
    bounds = (None, replace(SPENT, epsilon=float("inf")))
    for number, epsilon in enumerate(bounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        take(record(folder), 0, 20, 20, epsilon=epsilon)
        assert [line.keys() for line in lines(folder)] == [KEYS - {"epsilon"}] * 2


def test_scores_are_private_until_the_next_boundary_and_their_time_does_not_count(
    tmp_path: Path,
) -> None:
    progress = record(tmp_path, seconds=5.0)
    progress.begin(25)
    progress.add_scores(30, scores(1.5), SPENT)
    assert steps(tmp_path) == []
    assert (tmp_path / PRIVATE_PROGRESS).stat().st_mode & 0o777 == 0o600
    for step in range(31, 50):
        progress.after_step(PublicStep(step=step, last_step=100, learning_rate=0.1, epsilon=SPENT))
    assert steps(tmp_path) == [30, 40] and not (tmp_path / PRIVATE_PROGRESS).exists()
    assert lines(tmp_path)[0]["evaluations"][0]["metrics"] == {"bleu": 1.5}
    progress.add_scores(50, scores(2.5), SPENT, seconds=3.0)
    progress.after_step(PublicStep(step=50, last_step=100, learning_rate=0.1, epsilon=SPENT))
    assert lines(tmp_path)[2]["seconds"] == 5.0 - 3.0
    assert lines(tmp_path)[2]["evaluations"][0]["metrics"] == {"bleu": 2.5}


def test_scores_that_wait_outlast_a_crash_and_appear_when_the_run_has_ended(
    tmp_path: Path,
) -> None:
    progress = record(tmp_path)
    take(progress, 25, 29, 40)
    progress.add_scores(30, scores(1.0), SPENT)
    again = record(tmp_path)
    again.begin(33)
    assert again.has_scores(30) and not again.has_scores(20)
    again.publish(40)
    assert steps(tmp_path) == [30]


def test_a_resumed_run_replaces_the_lines_of_the_steps_that_it_takes_again(tmp_path: Path) -> None:
    progress = record(tmp_path)
    progress.begin(0)
    for step in range(1, 46):
        if step % 10 == 0:
            progress.add_scores(step, scores(step), SPENT)
        progress.after_step(PublicStep(step=step, last_step=60, learning_rate=0.1, epsilon=SPENT))
    before = (tmp_path / PROGRESS).read_text()
    again = record(tmp_path)
    again.begin(20)
    assert again.has_scores(20) and not again.has_scores(30)
    assert (tmp_path / PROGRESS).read_text() == before, "its moment would tell a time"
    take(again, 20, 30, 60, learning_rate=0.2)
    assert [(line["step"], line["learning_rate"]) for line in lines(tmp_path)] == [
        (10, 0.1), (20, 0.1), (30, 0.2), (40, 0.1),
    ]  # fmt: skip
    take(again, 30, 60, 60, learning_rate=0.2)
    assert steps(tmp_path) == [10, 20, 30, 40, 50, 60]
    assert [step for step in steps(tmp_path) if again.has_scores(step)] == [10, 20]


def test_lines_of_weights_that_are_gone_do_not_outlast_a_session_off_the_grid(
    tmp_path: Path,
) -> None:
    take(record(tmp_path), 0, 45, 100)
    take(record(tmp_path), 25, 41, 100)
    assert steps(tmp_path) == [10, 20, 40], "30 is too near to 25 to be shown"


def test_readers_are_told_each_step_once_over_all_sessions(tmp_path: Path) -> None:
    first, second, third = Told(), Told(), Told()
    take(record(tmp_path, first), 0, 45, 70)
    take(record(tmp_path, second), 20, 34, 70)
    take(record(tmp_path, third), 30, 70, 70)
    assert (first.steps, second.steps, third.steps) == ([10, 20, 30, 40], [], [50, 60, 70])


def test_a_line_that_a_crash_cut_off_is_written_again(tmp_path: Path) -> None:
    take(record(tmp_path), 0, 20, 60)
    path = tmp_path / PROGRESS
    path.write_text(path.read_text()[:-7])
    told = Told()
    take(record(tmp_path, told), 10, 30, 60)
    assert steps(tmp_path) == [10, 20, 30] and told.steps == [20, 30]


def test_lines_are_appended(tmp_path: Path) -> None:
    progress = record(tmp_path)
    take(progress, 0, 10, 30)
    file = (tmp_path / PROGRESS).stat().st_ino
    take(progress, 10, 30, 30)
    assert steps(tmp_path) == [10, 20, 30] and (tmp_path / PROGRESS).stat().st_ino == file


@pytest.mark.parametrize("text", ["{}\n", "no JSON\n", "[" * 100_000 + "\n"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / PROGRESS).write_text(text)
    with pytest.raises(StateError, match=r"progress\.jsonl"):
        read_progress(tmp_path / PROGRESS)


def test_trust_rule_8_scores_can_be_removed_again(tmp_path: Path) -> None:
    progress = record(tmp_path)
    progress.begin(0)
    progress.add_scores(10, scores(12.5), SPENT)
    take(progress, 0, 20, 20)
    progress.begin(0)
    remove_scores(tmp_path)
    assert "12.5" not in (tmp_path / PROGRESS).read_text()


def trained(folder: Path, progress: ProgressRecord, **given: Any) -> None:
    own = session(folder)
    object.__setattr__(own, "listeners", (progress,))
    train_privately(own, plan(steps=20), privacy(), epsilon_after=spent, **given)


@pytest.mark.slow
def test_trust_rule_7_the_event_files_of_a_run_hold_public_quantities_only(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    tracker = TensorBoard().open(folder, {"train": {"steps": 20}})
    tracking = Tracking(tracker, name="tensorboard")
    trained(tmp_path, ProgressRecord(tmp_path, [tracking]))
    tracking.conclude(20, {"privacy/epsilon_reported": 2.0})
    events = read_events(folder)
    assert events.keys() == POINT | {"privacy/epsilon_reported", "config/text_summary"}
    assert {tuple(step for step, _, _ in events[tag]) for tag in POINT} == {(10, 20)}


@pytest.mark.slow
def test_a_private_run_tells_its_learning_rate_and_the_epsilon_of_the_ledger(
    tmp_path: Path,
) -> None:
    trained(tmp_path, record(tmp_path))
    assert read_ledger(tmp_path / "ledger.jsonl").steps == 20
    # linear from 0.01 to 0 over 20 steps: step 10 is taken with 11/20 of it, step 20 with 1/20
    assert [(line["step"], line["learning_rate"]) for line in lines(tmp_path)] == [
        (10, pytest.approx(0.0055)), (20, pytest.approx(0.0005)),
    ]  # fmt: skip
    assert [line["epsilon"] for line in lines(tmp_path)] == [10.0, 20.0]


@pytest.mark.slow
def test_steps_that_are_taken_again_count_in_the_epsilon_that_is_told(tmp_path: Path) -> None:
    own = session(tmp_path, checkpoint_every=5)
    with killed(JournaledLedger, "record_step", 9):
        train_privately(own, plan(steps=20), privacy(None), epsilon_after=spent)
    own = session(tmp_path, micro_batch_size=2)
    object.__setattr__(own, "listeners", (record(tmp_path),))
    overspends = privacy(None)
    object.__setattr__(overspends, "resume_overspend", True)
    resume_point = find_resume_point(tmp_path)
    train_privately(own, plan(steps=20), overspends, epsilon_after=spent, resume_point=resume_point)
    # 8 steps were in the ledger and the checkpoint had 5, so 3 were taken again
    assert [(line["step"], line["epsilon"]) for line in lines(tmp_path)] == [(20, 23.0)]


@pytest.mark.slow
def test_a_run_without_privacy_has_the_same_lines_without_epsilon(tmp_path: Path) -> None:
    own = session(tmp_path)
    object.__setattr__(own, "listeners", (record(tmp_path),))
    train_ordinarily(own, 10)
    assert [line.keys() for line in lines(tmp_path)] == [KEYS - {"epsilon"}]
