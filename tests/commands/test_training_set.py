"""Training records come to the loop as they would if all were read and encoded at once."""

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dpft.commands import training_set as training_records
from dpft.commands.splits import (
    Division,
    TrainingData,
    divide,
    known_by,
    load_training_data,
)
from dpft.commands.training_set import check_canaries, make_training_set, render, summarize
from dpft.config.schema import TrainConfig
from dpft.constants import CAUSAL, TEXT
from dpft.data.batches import TextLayout
from dpft.data.canaries import COIN, Canary
from dpft.data.encoding import Encoding, TokenRows
from dpft.data.sources import load_examples
from dpft.data.tokenization import TokenizedExample
from dpft.data.training_records import bounded_units
from dpft.tasks.base import Example, Record
from dpft.training.loop import TrainingSet
from tests.commands.configs import with_privacy
from tests.data.conftest import load_with_units
from tests.rejections import rejects

KEY = bytes(32)
CPU = torch.device("cpu")
OWNERS = ["ann", "bob", "ann", "cy", "ann", "bob", "ann", "dee"]
ANSWERS = ["one", "two", "", "three", "four", "five", "six", ""]
RECORDS: list[Record] = [
    Example(prompt=f"question {n}?", target=answer, group=str(n))
    for n, answer in enumerate(ANSWERS)
]
_opened: list[tuple[object, int]] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append((arguments[0], int(str(arguments[2]))))


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def three_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_records, "TOGETHER", 3)


def made(
    config: TrainConfig, encoding: Encoding, given: Sequence[Record], owners: Sequence[str] | None
) -> TrainingSet:
    data = TrainingData(examples=given, units=owners)
    return make_training_set(config, data, encoding, CPU, unit_key=KEY)


@pytest.mark.slow
def test_records_without_units_are_the_rows_that_have_something_to_learn(
    config: TrainConfig, encoding: Encoding
) -> None:
    found = made(with_privacy(config, unit="example"), encoding, RECORDS, None)
    rows = [row for row in encoding.rows(RECORDS) if row.has_label]
    assert isinstance(found.examples, TokenRows)
    assert list(found.examples) == rows
    assert (found.units, found.excluded, found.num_units) == (None, 2, 6)


@pytest.mark.slow
def test_records_of_units_stay_in_their_places_and_the_same_ones_are_kept(
    config: TrainConfig, encoding: Encoding
) -> None:
    found = made(config, encoding, RECORDS, OWNERS)
    rows = encoding.rows(RECORDS)
    assert list(found.examples) == rows
    usable = [row.has_label for row in rows]
    assert found.units == bounded_units(OWNERS, usable=usable, records_per_unit=2, key=KEY)
    assert (found.excluded, found.num_units) == (2, 4)


def test_training_data_are_those_that_a_list_of_them_holds(config: TrainConfig) -> None:
    data = load_training_data(config)
    examples, units = load_with_units(config.task, "train", "owner")
    assert (list(data.examples), data.units, data.num_units) == (examples, units, 20)
    alone = load_training_data(with_privacy(config, unit="example"))
    assert (list(alone.examples), alone.units) == (load_examples(config.task, "train"), None)
    assert known_by(data, KEY) == known_by(TrainingData(examples=examples, units=units), KEY)


def test_what_is_held_out_does_not_depend_on_how_records_are_kept(
    config: TrainConfig, encoding: Encoding
) -> None:
    packed = load_training_data(config)
    listed = TrainingData(examples=list(packed.examples), units=packed.units)
    one, other = (divide(config, data, KEY) for data in (packed, listed))
    assert one == other and len(one.kept) < len(listed.examples)
    first, second = (
        make_training_set(config, data.only(one.kept), encoding, CPU, unit_key=KEY)
        for data in (packed, listed)
    )
    assert list(first.examples) == list(second.examples) and first.units == second.units
    assert len(packed.examples) == 40


def test_trust_rule_11_reading_and_encoding_write_no_file(
    config: TrainConfig, encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_opened", opened := [])
    data = load_training_data(config)
    make_training_set(config, data, encoding, CPU, unit_key=KEY)
    monkeypatch.undo()
    assert str(config.task.data_dir) in [str(path) for path, _ in opened]
    written = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    assert [path for path, flags in opened if flags & written] == []


def test_every_canary_must_fit_whichever_is_the_longest(
    config: TrainConfig, encoding: Encoding
) -> None:
    """Canaries of as many words may differ in tokens; one that is cut could not be found."""
    long = canary("learn " * encoding.max_length)
    for canaries in ([long, canary("learn")], [canary("learn"), long]):
        with rejects("task.max_length"):
            check_canaries(canaries, config.task, encoding)
    check_canaries([canary("learn")], config.task, encoding)


def canary(learned: str) -> Canary:
    return Canary(
        kind=COIN, read=("read",), learned=tuple(learned.split()), number=0, copies=0, unit="one"
    )


def config(records_per_unit: int | None) -> Any:
    """Return the parts of a run's configuration that a summary reads."""
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
    assert "| canaries added for audits | 4 |" in render(found)
