"""Rows in memory are read as a file's rows are, and never held longer than asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from dpft.config.load import from_values
from dpft.data.memory import held_splits, memory_rows, rows_in_memory
from dpft.data.sources import (
    has_split,
    has_training_split_alone,
    load_examples,
    load_with_units,
)
from dpft.errors import InputError
from dpft.tasks.base import Task, chosen_task_class

VALUES: list[dict[str, Any]] = [
    {"note": "was late", "customer": 7},
    {"note": "on time", "customer": 8},
    {"note": "was late", "customer": 7},
]


def task_of(source: str, **fields: Any) -> Task:
    values = {"name": "custom", "source": source, "text": "Note: {note}", **fields}
    return from_values(values, chosen_task_class(values))


def generated() -> Iterator[dict[str, Any]]:
    yield from VALUES


TABLES = {
    "list": lambda: VALUES,
    "generator": generated,
    "frame": lambda: pd.DataFrame(VALUES),
    "data set": lambda: datasets.Dataset.from_list(VALUES),
    "numpy": lambda: [{**row, "customer": np.int64(row["customer"])} for row in VALUES],
    "splits": lambda: {"train": VALUES, "validation": VALUES[:1]},
    "data set of splits": lambda: datasets.DatasetDict(train=datasets.Dataset.from_list(VALUES)),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_kind_of_table_gives_the_records_and_units_of_a_file(
    table: str, tmp_path: Path
) -> None:
    file = tmp_path / "notes.csv"
    file.write_text("".join(f"{note},{who}\n" for note, who in [("note", "customer"), *pairs()]))
    from_file = load_with_units(task_of("local", data_dir=str(file)), "train", "customer")
    with rows_in_memory(TABLES[table]()):
        assert load_with_units(task_of("memory"), "train", "customer") == from_file
        assert load_examples(task_of("memory"), "train") == from_file[0], "a second time, too"


def pairs() -> list[tuple[str, int]]:
    return [(row["note"], row["customer"]) for row in VALUES]


def test_what_a_frame_lacks_is_none_as_in_a_file() -> None:
    frame = pd.DataFrame({"note": ["a", None], "when": [pd.NaT, pd.Timestamp("2026-01-01")]})
    with rows_in_memory(frame):
        read = [dict(row.values) for row in memory_rows("train")]
    assert [row["note"] for row in read] == ["a", None]
    assert read[0]["when"] is None


def test_rows_in_memory_are_private_and_of_no_published_number() -> None:
    values = {"name": "e2e", "source": "memory", "num_train_examples": 42061}
    task = from_values(values, chosen_task_class(values))
    assert not any(task.is_published(split) for split in ("train", "validation", "test"))
    assert task.public_num_train_examples is None


def test_splits_are_known_by_name() -> None:
    task = task_of("memory")
    with rows_in_memory({"train": VALUES, "test": VALUES[:1]}):
        assert (has_split(task, "test"), has_split(task, "validation")) == (True, False)
        assert not has_training_split_alone(task)
        assert len(load_examples(task, "test")) == 1
    with rows_in_memory(VALUES):
        assert has_training_split_alone(task)
        with pytest.raises(InputError, match=r"no test split, only train; give rows=\{'train'"):
            load_examples(task, "test")


def test_rows_are_let_go_after_the_call() -> None:
    with rows_in_memory(VALUES):
        assert held_splits() == ("train",)
        with rows_in_memory(None):
            assert held_splits() == ("train",), "none given: nothing changes"
    assert held_splits() == ()
    with pytest.raises(InputError, match=r"dpft\.train\(rows=\.\.\.\).*task\.data_dir=FILE"):
        load_examples(task_of("memory"), "train")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("notes.csv", "must be a datasets.Dataset, a pandas frame or a list of dicts, got str"),
        (7, "a list of dicts, got int; a file is given by task.data_dir"),
        ({"note": ["a", "b"]}, "got a mapping with other keys"),
        (["secret"], "rows of the train split, row 1: must be a mapping"),
        ([{"note": "x"}, {7: "secret"}], "rows of the train split, row 2: must be a mapping"),
        ([{"remark": "secret"}], "row 1: lacks the column note, which task.text names"),
        ([], "The train split of rows holds no rows"),
    ],
)
def test_what_is_no_table_is_refused_without_quoting_it(rows: Any, message: str) -> None:
    with pytest.raises(InputError) as refusal, rows_in_memory(rows):
        load_examples(task_of("memory"), "train")
    assert message in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    frame = pd.DataFrame([["a", "b"]], columns=["note", "note"])
    with rows_in_memory(frame), pytest.raises(InputError, match="a frame with one twice"):
        load_examples(task_of("memory"), "train")
