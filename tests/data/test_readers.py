import io

import pyarrow
import pytest
from pyarrow import parquet

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
        [row.sound() for row in read_rows(io.BytesIO(content), "x.json")]
    assert str(caught.value).startswith(reason)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


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


@pytest.mark.parametrize("cut", [0, 3, 100, -9])
def test_a_broken_parquet_file_is_refused_by_its_name(cut):
    whole = parquet_bytes([{"a": "secret" * 50}] * 100)
    with pytest.raises(InputError, match=r"x\.parquet: not a complete Parquet file") as caught:
        list(read_rows(io.BytesIO(whole[:cut]), "x.parquet"))
    assert caught.value.__cause__ is None


def test_a_parquet_text_that_is_no_utf_8_is_refused_and_not_quoted():
    bad = pyarrow.array([b"fine", b"secret\xff"], pyarrow.binary()).cast(
        pyarrow.string(), safe=False
    )
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": bad}), sink)
    with pytest.raises(InputError, match="not UTF-8") as caught:
        list(read_rows(io.BytesIO(sink.getvalue()), "x.parquet"))
    assert "secret" not in str(caught.value)


def test_a_parquet_value_beyond_pythons_range_is_refused_and_not_quoted():
    sink = io.BytesIO()
    days = pyarrow.array([2**30], pyarrow.date32())
    parquet.write_table(pyarrow.table({"a": ["secret"], "day": days}), sink)
    with pytest.raises(InputError, match=r"x\.parquet, after row 0: .* range") as caught:
        list(read_rows(io.BytesIO(sink.getvalue()), "x.parquet"))
    assert str(2**30) not in str(caught.value)


def test_two_columns_of_one_name_are_refused_and_not_quoted():
    sink = io.BytesIO()
    columns = [pyarrow.array(["1"]), pyarrow.array(["2"])]
    parquet.write_table(pyarrow.table(columns, names=["secret", "secret"]), sink)
    for content, file in ((b"secret,b,secret\n1,2,3\n", "x.csv"), (sink.getvalue(), "x.parquet")):
        with pytest.raises(InputError, match="two columns have one name") as caught:
            list(read_rows(io.BytesIO(content), file))
        assert file in str(caught.value) and "secret" not in str(caught.value)
    (row,) = read_rows(io.BytesIO(b"a,,\n1,,\n"), "x.csv")
    assert row.values["a"] == "1"


def test_a_csv_cell_may_hold_quotes_line_breaks_and_a_long_document():
    long = "z " * 100_000
    content = f'\ufeffa,b\n"say ""hi""\n, there","{long}"\n'.encode()
    (row,) = read_rows(io.BytesIO(content), "x.csv")
    assert row.values == {"a": 'say "hi"\n, there', "b": long}


def test_bytes_that_are_no_utf_8_are_refused_by_file_and_line():
    content = "a\nfine\nsecret caf\u00e9\n".encode("latin-1")
    with pytest.raises(InputError, match=r"x\.csv, line 3: not UTF-8 text") as caught:
        list(read_rows(io.BytesIO(content), "x.csv"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [("x.jsonl", b'{"a": "secret", "a": "b"}\n'), ("x.json", b'[{"b": {"a": 1, "a": 2}}]')],
)
def test_an_object_that_says_a_name_twice_is_refused(file, content):
    with pytest.raises(InputError, match="not a JSON") as caught:
        [row.sound() for row in read_rows(io.BytesIO(content), file)]
    assert "secret" not in str(caught.value)
