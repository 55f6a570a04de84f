import json

import pytest

from benchmarks import records
from benchmarks.records import Run, table_line, write_records


def step(resident: int, peak: int) -> Run:
    return Run(seconds=19.6, processor_seconds=40.2, resident_bytes=resident, peak_bytes=peak)


def test_a_line_holds_what_a_record_adds_to_a_run_on_few():
    few, many = step(10**8, 2 * 10**8), step(10**8 + 99_000 * 210, 2 * 10**8 + 99_000 * 280)
    line = table_line(100_000, [(few, many)] * 2, name="gpt2", ratios=[1.0, 1.1, 1.4], length=50.0)
    assert line == (
        "| 100,000 | gpt2 | 50.0 | 210 | 280 | 0.23 | 20 | 40 | 1.10 (1.05 to 1.25) | 3 |"
    )
    assert table_line(2000, [(few, many)], name="x", ratios=[], length=None).endswith("| - | 0 |")


def test_records_are_the_same_every_time_and_of_the_length_asked_for(tmp_path):
    for name in ("one", "other"):
        write_records(tmp_path / name, 50, length=20)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "one").read_text().splitlines()]
    lengths = [len(f"{row['question']} {row['answer']}".split()) for row in rows]
    assert len(rows) == 50 and set(lengths) <= set(range(15, 26)) and len(set(lengths)) > 3


def test_rows_measured_before_stay_in_the_table(tmp_path):
    page = tmp_path / "results.md"
    page.write_text(f"# Other\n\n| a |\n\n# {records.TITLE}\n\n| a |\n|---|\n| 1 |\n\n# More\n")
    assert records._kept(page) == ["| 1 |"]
    assert records._kept(tmp_path / "none.md") == []


@pytest.mark.slow
def test_the_line_of_a_whole_run_is_written(tmp_path):
    output = tmp_path / "results.md"
    records.main(["--records", "1500", "--pairs", "1", "--output", str(output)])
    (line,) = records._kept(output)
    assert line.startswith("| 1,500 | embedded |") and line.endswith("| 1 |")
