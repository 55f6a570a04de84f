"""A report of a run that averages its weights: a column for each, and which is released."""

import pytest

from dpft.records.configuration import TrainSection
from dpft.records.form import parse
from dpft.records.scores import STAGES, ScoreEntry
from dpft.reports.run.scores import score_tables
from dpft.reports.run.sections import _average_rows


def entry(stage: str, accuracy: float) -> ScoreEntry:
    return ScoreEntry(
        task="sst2", split="test", examples=5, stage=stage, split_is_public=True,  # type: ignore[arg-type]
        metrics={"accuracy": accuracy}, not_computed={},
    )  # fmt: skip


def test_the_released_weights_stand_last_whatever_order_they_were_written_in() -> None:
    (table,) = score_tables([entry("after", 0.8), entry("last", 0.7), entry("before", 0.5)])
    assert table.stages == ["before", "last", "after"]
    assert table.headings == ["before fine-tuning", "with the last weights", "after fine-tuning"]
    assert table.rows == [("accuracy", [0.5, 0.7, 0.8])]
    assert list(STAGES)[-1] == "after"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({}, []),
        ({"average": "none"}, []),
        (
            {"average": "tail", "average_released": True},
            ["the mean of those of the last 25% of the steps; beside: those of the last step"],
        ),
        (
            {"average": "ema", "average_released": False},
            ["those of the last step; beside: an exponential average of every step's, decay at"],
        ),
    ],
)
def test_which_weights_are_released_is_said(train: dict, words: list[str]) -> None:
    settings = {"learning_rate": 0.1, "weight_decay": 0.0, "average_decay": 0.9999}
    rows = _average_rows(parse(settings | {"average_tail": 0.25} | train, TrainSection))
    assert len(rows) == len(words)
    for (name, said), expected in zip(rows, words, strict=True):
        assert name == "weights released" and expected in said
