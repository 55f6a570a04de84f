"""Rows in memory are read as a file's rows are, and never held longer than asked."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from dpft.config.load import from_values
from dpft.data.raw_rows import (
    WRITERS,
    held_splits,
    memory_rows,
    read_rows,
    rows_in_memory,
    split_tables,
    write_rows,
)
from dpft.data.sources import (
    has_split,
    has_training_split_alone,
    load_examples,
)
from dpft.errors import InputError
from dpft.tasks.base import Task, chosen_task_class
from tests.data.conftest import load_with_units
from tests.rejections import rejects


def test_rows_are_streamed_so_that_a_late_fault_does_not_hide_early_rows():
    stream = io.BytesIO(b'{"a": "1"}\nbroken\n')
    rows = read_rows(stream, "x.jsonl")
    assert next(rows).values == {"a": "1"}


def test_a_line_separator_inside_a_string_does_not_end_the_line():
    (row,) = read_rows(io.BytesIO('{"a": "x\u2028y"}\n'.encode()), "x.jsonl")
    assert row.values == {"a": "x\u2028y"}


def test_a_csv_row_is_placed_at_the_line_it_starts_on():
    stream = io.BytesIO(b'a,b\r\n1,"two\r\nlines"\r\n\r\n3,4\r\n')
    rows = list(read_rows(stream, "x.csv"))
    assert [row.place for row in rows] == ["x.csv, line 2", "x.csv, line 5"]
    assert rows[0].values == {"a": "1", "b": "two\r\nlines"}


def test_the_records_of_a_json_list_are_placed_by_their_number():
    rows = list(read_rows(io.BytesIO(b'\xef\xbb\xbf[\n{"a": 1},\n\n{"a": [2]}]'), "x.json"))
    assert [(row.place, row.values) for row in rows] == [
        ("x.json, record 1", {"a": 1}),
        ("x.json, record 2", {"a": [2]}),
    ]


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b'{"secret": 1}', "x.json"),
        (b"[" * 100_000, "x.json"),
        (b"[" + b"9" * 5000 + b"]", "x.json"),
        (b'[{"a": 1}, "secret"]', "x.json, record 2"),
        (b'[\n{"secret": "\xff"}]', "x.json, line 2"),
    ],
)
def test_what_is_no_json_list_of_objects_is_refused_without_being_quoted(content, key):
    with rejects(key) as faults:
        [row.sound() for row in read_rows(io.BytesIO(content), "x.json")]
    assert "secret" not in str(faults[0])


def parquet_bytes(rows: list[dict[str, object]], **settings: object) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink, **settings)
    return sink.getvalue()


def test_a_parquet_file_gives_its_rows_over_row_groups():
    said = [{"role": "user", "content": "é"}]
    rows = [{"a": f"x{n}", "n": n, "none": None, "talk": said} for n in range(5)]
    found = list(read_rows(io.BytesIO(parquet_bytes(rows, row_group_size=2)), "x.parquet"))
    assert [row.values for row in found] == rows
    assert [row.place for row in found][-1] == "x.parquet, row 5"


@pytest.mark.parametrize("cut", [0, 100])
def test_a_broken_parquet_file_is_refused_by_its_name(cut):
    whole = parquet_bytes([{"a": "secret" * 50}] * 100)
    with pytest.raises(InputError, match=r"x\.parquet") as caught:
        list(read_rows(io.BytesIO(whole[:cut]), "x.parquet"))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([b"secret\xff"], pyarrow.binary()).cast(pyarrow.string(), safe=False),
        pyarrow.array([2**30], pyarrow.date32()),
    ],
    ids=["no UTF-8", "out of Python's range"],
)
def test_a_parquet_value_that_cannot_be_read_is_refused_and_not_quoted(column):
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": column}), sink)
    with rejects("x.parquet") as faults:
        list(read_rows(io.BytesIO(sink.getvalue()), "x.parquet"))
    assert "secret" not in str(faults[0]) and str(2**30) not in str(faults[0])


def test_two_columns_of_one_name_are_refused_and_not_quoted():
    sink = io.BytesIO()
    columns = [pyarrow.array(["1"]), pyarrow.array(["2"])]
    parquet.write_table(pyarrow.table(columns, names=["secret", "secret"]), sink)
    for content, key in (
        (b"secret,b,secret\n1,2,3\n", "x.csv, line 1"),
        (sink.getvalue(), "x.parquet"),
    ):
        with rejects(key) as faults:
            list(read_rows(io.BytesIO(content), key.partition(",")[0]))
        assert "secret" not in str(faults[0])
    (row,) = read_rows(io.BytesIO(b"a,,\n1,,\n"), "x.csv")
    assert row.values["a"] == "1"


def test_a_csv_cell_may_hold_quotes_line_breaks_and_a_long_document():
    long = "z " * 100_000
    content = f'\ufeffa,b\n"say ""hi""\n, there","{long}"\n'.encode()
    (row,) = read_rows(io.BytesIO(content), "x.csv")
    assert row.values == {"a": 'say "hi"\n, there', "b": long}


SEPARATED = {
    "semicolons": (b"text;price\nsoup, hot;3,5\n", {"text": "soup, hot", "price": "3,5"}),
    "tabs": (b"text\tprice\nsoup; hot\t3|5\n", {"text": "soup; hot", "price": "3|5"}),
    "vertical bars": (b"text|price\r\nsoup|3\r\n", {"text": "soup", "price": "3"}),
    "a quoted header": (b'"the text";"price"\n"a;b";"3,5"\n', {"the text": "a;b", "price": "3,5"}),
    "a comma in a name": (b'"text, long";price\nsoup;3\n', {"text, long": "soup", "price": "3"}),
    "a name of two lines": (b'id;"long\nname"\n1;2\n', {"id": "1", "long\nname": "2"}),
    "a byte-order mark": (b"\xef\xbb\xbf\na;b\n1;2\n", {"a": "1", "b": "2"}),
    "a semicolon in a name": (b"a;b,c\n1;2,3\n", {"a;b": "1;2", "c": "3"}),
    "one column of texts": (b"text\nsoup; hot | cold\n", {"text": "soup; hot | cold"}),
    "two candidates": (b"a;b|c\n1;2|3\n", {"a;b|c": "1;2|3"}),
}


@pytest.mark.parametrize("content, values", SEPARATED.values(), ids=SEPARATED)
def test_the_header_of_a_csv_file_shows_its_separator(content, values):
    (row,) = read_rows(io.BytesIO(content), "x.csv")
    assert row.values == values


@pytest.mark.parametrize(
    "content",
    [b'a,b\r1,"x\ry"\r2,z\r', b'a;b\r\r1;"x\ry"\r2;z', b'\xef\xbb\xbfa\tb\r1\t"x\ry"\r2\tz\n'],
)
def test_bare_carriage_returns_end_the_lines_of_a_csv_file(content):
    rows = list(read_rows(io.BytesIO(content), "x.csv"))
    assert [row.values for row in rows] == [{"a": "1", "b": "x\ry"}, {"a": "2", "b": "z"}]


def test_a_carriage_return_among_other_line_breaks_is_named_by_its_line():
    with rejects("x.csv, line 3") as faults:
        list(read_rows(io.BytesIO(b"a,b\n1,2\n3,sec\rret\n"), "x.csv"))
    assert "sec" not in str(faults[0])


def test_bytes_that_are_no_utf_8_are_refused_by_file_and_line():
    content = "a\nfine\nsecret caf\u00e9\n".encode("latin-1")
    with rejects("x.csv, line 3") as faults:
        list(read_rows(io.BytesIO(content), "x.csv"))
    assert "secret" not in str(faults[0])


@pytest.mark.parametrize(
    ("file", "content"),
    [("x.jsonl", b'{"a": "secret", "a": "b"}\n'), ("x.json", b'[{"b": {"a": 1, "a": 2}}]')],
)
def test_an_object_that_says_a_name_twice_is_refused(file, content):
    with rejects() as faults:
        [row.sound() for row in read_rows(io.BytesIO(content), file)]
    assert file in faults[0].key and "secret" not in str(faults[0])


ROWS = [
    {"name": 'Ann, "A."', "note": "two\nlines, \r\nand three"},
    {"name": " = £ ", "note": ""},
]


def read_back(path) -> list[dict]:
    stream = io.BytesIO(path.read_bytes())
    return [dict(row.values) for row in read_rows(stream, str(path))]


@pytest.mark.parametrize("ending", WRITERS)
def test_what_is_written_is_read_back_and_another_time_is_the_same_file(tmp_path, ending):
    one, other = tmp_path / f"one{ending}", tmp_path / f"other{ending}"
    write_rows(one, ROWS)
    write_rows(other, ROWS, mode=0o600)
    assert read_back(one) == ROWS
    assert one.read_bytes() == other.read_bytes()
    assert [path.stat().st_mode & 0o777 for path in (one, other)] == [0o644, 0o600]


def test_columns_of_a_table_come_in_the_order_in_which_rows_name_them(tmp_path):
    write_rows(tmp_path / "a.csv", [{"z": "1", "a": 2}, {"a": True, "m": "3"}])
    assert (tmp_path / "a.csv").read_bytes() == b"z,a,m\r\n1,2,\r\n,true,3\r\n"


def test_a_parquet_column_keeps_numbers_and_lists_and_is_text_where_types_differ(tmp_path):
    rows = [{"n": 1, "list": [{"role": "user"}], "both": 1}, {"n": 2, "list": [], "both": "a"}]
    write_rows(tmp_path / "a.parquet", rows)
    found = read_back(tmp_path / "a.parquet")
    assert [row["both"] for row in found] == ["1", "a"]
    assert json.dumps([[row["n"], row["list"]] for row in found]) == json.dumps(
        [[row["n"], row["list"]] for row in rows]
    )


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


def test_lists_that_pandas_read_from_parquet_are_lists(tmp_path: Path) -> None:
    call = {"function": {"name": "look"}}
    messages = [{"role": "user", "tool_calls": [call, call]}]
    pd.DataFrame({"messages": [messages]}).to_parquet(tmp_path / "talk.parquet")
    with rows_in_memory(pd.read_parquet(tmp_path / "talk.parquet")):
        (row,) = memory_rows("train")
    assert row.values == {"messages": messages}


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
        with rejects("rows"):
            load_examples(task, "test")


def test_rows_are_let_go_after_the_call() -> None:
    with rows_in_memory(VALUES):
        assert held_splits() == ("train",)
        with rows_in_memory(None):
            assert held_splits() == ("train",), "none given: nothing changes"
    assert held_splits() == ()
    with rejects("task.source", "memory"):
        load_examples(task_of("memory"), "train")


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ("notes.csv", "rows"),
        (7, "rows"),
        ({"note": ["a", "b"]}, "rows"),
        (pd.DataFrame([["a", "b"]], columns=["note", "note"]), "rows"),
        ([], "rows"),
        (["secret"], "rows of the train split, row 1"),
        ([{"note": "x"}, {7: "secret"}], "rows of the train split, row 2"),
        ([{"remark": "secret"}], "rows of the train split, row 1"),
    ],
)
def test_what_is_no_table_is_refused_without_quoting_it(rows: Any, key: str) -> None:
    with rejects(key) as faults, rows_in_memory(rows):
        load_examples(task_of("memory"), "train")
    assert "secret" not in str(faults[0])


def test_tables_may_be_of_parts_of_a_split():
    assert list(split_tables({"train": [], "validation_matched": []})) == [
        "train",
        "validation_matched",
    ]
