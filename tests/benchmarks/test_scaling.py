"""Scaling on paper: the sums are of the plan, and what does not fit is said."""

from benchmarks import scaling
from benchmarks.scaling import Model, row_of, spreads
from benchmarks.shapes import SHAPES

TINY = Model(SHAPES["tiny_gpt2"], copies=100.0)


def test_one_device_sends_nothing_and_more_devices_compute_for_a_shorter_time() -> None:
    one, eight = (min(TINY.steps(devices), key=lambda step: step.seconds) for devices in (1, 8))
    assert (one.sent, one.network) == (0, 0)
    assert eight.sent > 0
    assert 7.9 < one.compute / eight.compute < 8.1
    assert 7.9 < one.noise / eight.noise < 8.1


def test_every_number_of_devices_has_a_row() -> None:
    for devices in scaling.DEVICES:
        cells = row_of("tiny", TINY, devices).strip("| ").split(" | ")
        assert len(cells) == len(scaling.COLUMNS)
        assert cells[-1] in ("compute", "network", "noise")


def test_what_does_not_fit_is_said(monkeypatch) -> None:
    monkeypatch.setattr(scaling, "MEMORY", 1e6)
    assert row_of("tiny", TINY, 8).split(" | ")[-1].startswith("memory (")


def test_shards_are_of_whole_nodes() -> None:
    assert [spread.shard_size for spread in spreads(64)] == [None, 8, 8, 64, 64]
