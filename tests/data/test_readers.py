import io

from dpft.data.readers import read_rows


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
