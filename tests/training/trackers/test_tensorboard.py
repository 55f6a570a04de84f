import re
import socket

import pytest

pytest.importorskip("tensorboard")

from dpft.training.trackers import Place, TensorBoard
from tests.training.trackers.reading import read_events


def place(folder, *, goes_on: bool = False) -> Place:
    return Place(folder=folder, run_id="abc", goes_on=goes_on, config={"train": {"steps": 40}})


def test_tensorboard_reads_what_was_written_over_two_sessions(tmp_path) -> None:
    epsilon = 2.1234567890123  # float32 would make 2.1234567165 of it, below the bound
    for number, goes_on in ((10, False), (20, True)):
        tracker = TensorBoard().open(place(tmp_path, goes_on=goes_on))
        tracker.write(number, {"privacy/epsilon": epsilon}, 1000.0 + number)
        tracker.close(failed=False)
    events = read_events(tmp_path)
    assert events.keys() == {"privacy/epsilon", "config/text_summary"}
    assert events["privacy/epsilon"] == [(10, 1010.0, epsilon), (20, 1020.0, epsilon)]
    ((_, _, config),) = events["config/text_summary"]
    assert config.decode() == "    train:\n      steps: 40\n"


def test_a_files_name_does_not_name_the_machine(tmp_path) -> None:
    TensorBoard().open(place(tmp_path)).close(failed=False)
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\.\d{9}", path.name)
    assert socket.gethostname().encode() not in path.read_bytes()


def test_trust_rule_7_when_a_session_that_goes_on_began_is_not_told(tmp_path) -> None:
    tracker = TensorBoard().open(place(tmp_path, goes_on=True))
    assert not list(tmp_path.iterdir())
    tracker.write(30, {"privacy/epsilon": 1.0}, 1000.0)
    tracker.close(failed=False)
    assert len(list(tmp_path.iterdir())) == 1
    TensorBoard().open(place(tmp_path, goes_on=True)).close(failed=True)
    assert len(list(tmp_path.iterdir())) == 1
