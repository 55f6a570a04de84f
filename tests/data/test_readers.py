import io

import pytest

from dpft.data.readers import read_rows
from dpft.errors import InputError


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
    ("content", "reason"),
    [
        (b'{"secret": 1}', "x.json: not a JSON list of objects"),
        (b'[{"secret": 1}', "x.json: not a JSON list of objects"),
        (b"", "x.json: not a JSON list of objects"),
        (b"[" * 100_000, "x.json: not a JSON list of objects"),
        (b"[" + b"9" * 5000 + b"]", "x.json: not a JSON list of objects"),
        (b'[{"a": 1}, "secret"]', "x.json, record 2: not a JSON object"),
        (b'[\n{"secret": "\xff"}]', "x.json, line 2: not UTF-8"),
    ],
)
def test_what_is_no_json_list_of_objects_is_refused_without_being_quoted(content, reason):
    with pytest.raises(InputError) as caught:
        list(read_rows(io.BytesIO(content), "x.json"))
    assert str(caught.value).startswith(reason)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
