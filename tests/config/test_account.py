from pathlib import Path

import pytest

from dpft.commands.report import ReportConfig
from dpft.config.load import from_values


def refusal(**values: object) -> str:
    with pytest.raises(ValueError) as error:
        ReportConfig(**values)
    return str(error.value)


def test_one_name_and_a_list_of_names_are_both_taken() -> None:
    assert from_values({"runs": "a"}, ReportConfig).folders == (Path("a"),)
    config = from_values({"runs": ["a", "b"], "metric": "bleu"}, ReportConfig)
    assert (config.folders, config.metrics) == ((Path("a"), Path("b")), ("bleu",))
    assert ReportConfig(runs="a").metrics == ()


def test_a_report_without_runs_is_refused() -> None:
    for given in ({}, {"runs": ()}):
        assert "runs must name at least one folder, got none; give runs=FOLDER." in refusal(**given)


def test_a_folder_is_no_format_of_a_report() -> None:
    assert "'csv', 'markdown'" in refusal(runs="a", to="tables")


@pytest.mark.parametrize(
    ("to", "file", "part"),
    [
        ("plot", "a.docx", "file must be a file named *.svg or *.png, got 'a.docx'"),
        ("csv", "none/a.csv", "file must be in a folder that exists, got 'none/a.csv'"),
    ],
)
def test_a_report_is_written_only_where_it_can_be(to: str, file: str, part: str) -> None:
    assert part in refusal(runs="a", to=to, file=file)


@pytest.mark.parametrize("other", [{"output": "json"}, {"rebuild": True}])
@pytest.mark.parametrize("given", [{"to": "csv"}, {"file": "a.md"}])
def test_formats_and_files_are_for_tables_and_plots(
    given: dict[str, str], other: dict[str, object]
) -> None:
    assert "to and file are for a table or a plot, got them with" in (
        refusal(runs="a", **given, **other)
    )
