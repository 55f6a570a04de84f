import io
import json

import pytest

from dpft.data.readers import read_rows
from dpft.data.writers import WRITERS, write_rows

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
