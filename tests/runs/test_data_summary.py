"""What a private summary counts, of a training set made by hand."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.kinds import CAUSAL, TEXT
from dpft.runs.held_out import Division, TrainingData
from dpft.runs.training_records import render, summarize
from dpft.tasks.base import Example
from dpft.training.loop import TrainingSet


def config(records_per_unit: int | None) -> Any:
    """Returns the parts of a run's configuration that a summary reads."""
    guarantee = SimpleNamespace(records_per_unit=records_per_unit)
    task = SimpleNamespace(longest=9, on_invalid="error")
    return cast(Any, SimpleNamespace(privacy=SimpleNamespace(guarantee=guarantee), task=task))


def training_set(cut: list[bool], **given: Any) -> TrainingSet:
    rows = [TokenizedExample(input_ids=[1], labels=[1], truncated=is_cut) for is_cut in cut]
    layout = TextLayout(kind=CAUSAL, answer=TEXT, pad_token_id=0)
    device = torch.device("cpu")
    return TrainingSet(examples=rows, micro_batch_size=4, layout=layout, device=device, **given)


def records(number: int) -> list[Example]:
    return [Example(prompt="", target="", group="", separator="")] * number


def counts(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [row.split("|")[2].strip() for row in rows]


def test_held_out_empty_and_cut_records_are_counted_apart() -> None:
    data = TrainingData(examples=records(8), units=None)
    made = training_set([True, False, True, False], excluded=1)
    text = render(summarize(config(None), data, Division(kept=range(5), scored={}), made))
    assert counts(text) == ["8", "3", "1", "4", "2"]
    assert "max_length=9" in text and "private" in text.lower()


@pytest.mark.parametrize("held", [0, 2])
def test_of_units_those_beyond_the_bound_and_those_left_without_a_record_count(held: int) -> None:
    units = ["a", "a", "a", "b", "c"] + ["d"] * held
    data = TrainingData(examples=records(5 + held), units=units)
    # of a the first two, of b nothing to learn, of c its one record, which was cut
    made = training_set([False, False, True, False, True], units=[[0, 1], [], [4]], excluded=1)
    text = render(summarize(config(2), data, Division(kept=range(5), scored={}), made))
    read = f"{5 + held}, of {4 if held else 3} units"
    assert counts(text) == [read, str(held), "1", "1", "3, of 2 units", "1"]


def test_canaries_are_trained_on_beside_what_was_read_and_none_of_it_is_beyond_a_bound() -> None:
    data = TrainingData(examples=records(3), units=["a", "a", "b"])
    # of one canary with three copies two are kept, and of another its one
    made = training_set([False] * 7, units=[[0, 1], [2], [3, 4], [6]])
    found = summarize(config(2), data, Division(kept=range(3), scored={}), made, canaries=4)
    assert counts(render(found)) == ["3, of 2 units", "0", "4", "0", "1", "6, of 4 units", "0"]
    assert "| canaries added, for audits | 4 |" in render(found)
