"""Rows of any text that are written to a file are read back as they were."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.data.raw_rows import file_rows, write_rows

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
rows = st.lists(st.fixed_dictionaries({"prompt": texts, "answer": texts}), min_size=1, max_size=5)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@given(written=rows)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_written_rows_are_read_back(ending: str, written: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{ending}"
        write_rows(path, written)
        assert [dict(row.sound()) for row in file_rows(path)] == written
