import argparse
from pathlib import Path

import pytest

from benchmarks import same_epsilon
from dpft.records.scores import ScoreEntry
from tests.config.test_conf import loaded

OPTIONS = argparse.Namespace(model="M", data=Path("D"), runs=Path("R"))
ROWS = same_epsilon.rows(1)


def test_every_optimizer_has_as_many_learning_rates_and_no_run_is_there_twice() -> None:
    counts = {len(rates.split()) for each in same_epsilon.RATES.values() for rates in each.values()}
    assert counts == {3}
    assert len({row.name for row in ROWS}) == len(ROWS) == 2 * 2 * (3 + 3 + 3 + 3)


@pytest.mark.parametrize("row", ROWS[::7], ids=lambda row: row.name)
def test_a_run_composes_to_what_its_row_says(row: same_epsilon.Row) -> None:
    config = loaded("train", row.words(OPTIONS))
    assert config.task.name == row.data and config.optimizer.name == row.optimizer
    assert config.train.learning_rate == float(row.rate)
    averaging = config.train.averaging
    assert averaging is not None and averaging.kind == row.average and averaging.released


def test_a_line_has_the_last_weights_before_the_average(monkeypatch) -> None:
    entries = [
        ScoreEntry(
            task="sst2", split="validation", examples=5, stage=stage, split_is_public=True,
            metrics={"accuracy": accuracy}, not_computed={},
        )
        for stage, accuracy in (("before", 0.5), ("after", 0.75), ("last", 0.7))
    ]  # fmt: skip
    monkeypatch.setattr(same_epsilon, "read_evaluations", lambda folder: entries)
    row = next(row for row in ROWS if row.data == "sst2")
    assert same_epsilon.line(row, Path("R")).endswith("| accuracy 0.7 / 0.75 |")
