import sys

import pytest

from dpft.training.trackers import TRACKING, TensorBoard, WeightsAndBiases
from tests.rejections import rejects

TRACKERS = (TensorBoard, WeightsAndBiases)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_trust_rule_7_points_nearer_than_ten_steps_are_refused(tracker) -> None:
    with pytest.raises(ValueError, match="every\n.*10"):
        tracker(every=9)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_package_is_refused_with_the_way_to_install_it(tracker, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, tracker().name, None)
    with rejects("tracking", tracker().name):
        tracker().check()


def test_a_configuration_loads_without_its_package(monkeypatch) -> None:
    for name in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    names = ["none", "tensorboard", "wandb"]
    assert list(TRACKING.entries()) == names
    assert [TRACKING.named(name)().name for name in names] == names
