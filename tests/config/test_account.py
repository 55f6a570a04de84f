from pathlib import Path

import pytest

from dpft.commands.report import ReportConfig
from dpft.config.load import from_values
from tests.rejections import rejects


def test_one_name_and_a_list_of_names_are_both_taken() -> None:
    assert from_values({"runs": "a"}, ReportConfig).folders == (Path("a"),)
    config = from_values({"runs": ["a", "b"], "metric": "bleu"}, ReportConfig)
    assert (config.folders, config.metrics) == ((Path("a"), Path("b")), ("bleu",))
    assert ReportConfig(runs="a").metrics == ()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({}, "runs"),
        ({"runs": []}, "runs"),
        ({"runs": "a", "to": "plot", "file": "a.docx"}, "file"),
        ({"runs": "a", "to": "csv", "file": "none/a.csv"}, "file"),
        ({"runs": "a", "to": "tables"}, "to"),
    ],
)
def test_a_report_needs_runs_a_known_format_and_a_folder(values: dict, key: str) -> None:
    with rejects(key):
        from_values(values, ReportConfig)


@pytest.mark.parametrize("other", [{"output": "json"}, {"rebuild": True}])
@pytest.mark.parametrize("given", [{"to": "csv"}, {"file": "a.md"}])
def test_formats_and_files_are_for_tables_and_plots(
    given: dict[str, str], other: dict[str, object]
) -> None:
    with rejects(*given):
        from_values({"runs": "a", **given, **other}, ReportConfig)
