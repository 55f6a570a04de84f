import re
import socket

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from dpft.training.trackers import TensorBoard
from tests.training.trackers.reading import contains_word, read_events

PUBLIC = {"train": {"steps": 40}}


@pytest.mark.slow
def test_tensorboard_reads_what_was_written_over_two_sessions(tmp_path) -> None:
    epsilon = 2.1234567890123  # float32 would make 2.1234567165 of it, below the bound
    for number in (10, 20):
        tracker = TensorBoard().open(tmp_path, PUBLIC)
        tracker.write(number, {"privacy/epsilon": epsilon})
        tracker.close(failed=False)
    events = read_events(tmp_path)
    assert events.keys() == {"privacy/epsilon", "config/text_summary"}
    points = [(step, value) for step, _, value in events["privacy/epsilon"]]
    assert points == [(10, epsilon), (20, epsilon)]
    ((_, _, config),) = events["config/text_summary"]
    assert config.decode() == "    train:\n      steps: 40\n"


def test_a_files_name_does_not_name_the_machine(tmp_path) -> None:
    TensorBoard().open(tmp_path, PUBLIC).close(failed=False)
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\.\d{9}", path.name)
    events = [str(event) for event in EventFileLoader(str(path)).Load()]
    assert events and not any(contains_word(event, socket.gethostname()) for event in events)


def test_trust_rule_7_when_a_session_that_goes_on_began_is_not_told(tmp_path) -> None:
    TensorBoard().open(tmp_path, PUBLIC).close(failed=True)
    (first,) = tmp_path.iterdir()
    tracker = TensorBoard().open(tmp_path, PUBLIC)
    assert list(tmp_path.iterdir()) == [first]
    tracker.write(30, {"privacy/epsilon": 1.0})
    tracker.close(failed=False)
    assert len(list(tmp_path.iterdir())) == 2
    TensorBoard().open(tmp_path, PUBLIC).close(failed=True)
    assert len(list(tmp_path.iterdir())) == 2
